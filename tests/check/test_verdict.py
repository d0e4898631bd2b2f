"""A verdict is true only when passed, and its text is escaped where it becomes HTML."""

import re
from fractions import Fraction
from types import SimpleNamespace as Seen

import pytest
import torch

from helpers.check import solved, week10, week13b, week14
from helpers.check.answers import difference
from helpers.check.exercise import Case
from helpers.check.verdict import NotRight, Verdict
from helpers.check.week01.collectives import global_mean
from helpers.check.week04 import block, layers
from helpers.check.week05 import schedules
from helpers.check.week06 import shards
from helpers.check.week07 import files
from helpers.check.week08.precision import play_rounding

SENT, CALL = ([("send", 8)], [("recv", 9)]), Seen(name="send", nbytes=999)
COSTS = {"state": [40, 90], "optimizers": [1, 1], "all-reduced": [0, 0]}
FIRST = torch.tensor([1 + 2**-9])


def test_truth():
    assert Verdict("e", "passed")
    assert not Verdict("e", "wrong", "x")
    assert not Verdict("e", "not written yet")


def test_text():
    text = repr(Verdict("mean", "wrong", "rank 1 returned 3", "Look at rank 1."))
    assert text.splitlines() == ["✗ mean: wrong", "rank 1 returned 3", "Hint: Look at rank 1."]


def test_html_is_escaped():
    page = Verdict("mean", "wrong", "<built-in>", "a < b")._repr_html_()
    assert "&lt;built-in&gt;" in page
    assert "a &lt; b" in page


def test_nothing_stands_for_what_is_not_there():
    assert repr(Verdict("mean", "passed")) == "✓ mean: passed"
    assert repr(Verdict("mean", "not written yet")) == "… mean: not written yet"
    assert repr(Verdict("mean", "wrong", hint="Look.")) == "✗ mean: wrong\nHint: Look."
    page = Verdict("mean", "passed")._repr_html_()
    assert "pre" not in page
    assert "Hint" not in page
    assert "Hint" not in Verdict("mean", "wrong", "3")._repr_html_()
    assert "<pre" not in Verdict("mean", "wrong", hint="Look.")._repr_html_()


def test_html_says_the_same_in_the_colour_of_its_status():
    colours = {}
    for status, mark in (("passed", "✓"), ("wrong", "✗"), ("not written yet", "…")):
        page = Verdict("<mean>", status, "it is 3", "Look.")._repr_html_()
        assert f"{mark} &lt;mean&gt;: {status}</b>" in page
        assert ">it is 3</pre>" in page
        assert "<b>Hint</b>: Look." in page
        colour, again = re.findall(r"#\w{6}", page)
        assert colour == again
        colours[status] = colour
    assert len(set(colours.values())) == 3
    assert colours["passed"] == solved.GREEN


@pytest.mark.parametrize(
    ("call", "finding"),
    [
        (lambda: files.judge_reads({"rows read": [3, 5]}, {"rows read": [3, 2]}, 2, {}),
         "rank 1 has 2 rows, and read 5"),
        (lambda: block.judge_sent({"messages": SENT}, {"messages": (SENT[0], [("a", 3)])}, 2, {}),
         "rank 1 sent recv of 9 bytes; the partial sums have 3 bytes"),
        (lambda: layers.judge_messages({"messages": [[("send", 481)]]}, {}, 1, {"sizes": [3]}),
         "481 bytes; its own logits are 288 bytes, and one number for each token is 96 bytes"),
        (lambda: schedules.order_1f1b(lambda p, m: [["F0", f"F{m}"]] * p),
         "rank 0 has the cell 'F8'; the micro-batches are 0 to 7"),
        (lambda: schedules.order_1f1b(lambda p, m: [[a + i for a in "FB" for i in "01234567"]] * p),
         "rank 0 keeps 8 micro-batches, and 4 are enough"),
        (lambda: shards.judge_costs(COSTS, {"state": [16, 32]}, 2, {"optimizer": "Adam"}),
         "rank 1's Adam holds 90 bytes of state; the state of a shard has 32 bytes"),
        (lambda: play_rounding(lambda x, _: x + 2, FIRST, 3)["example"],
         "1.00195312 became 3.00195312; its neighbours are 1 and 1.0078125"),
        (lambda: week10.judge_sizes({"calls": [[CALL]]}, {}, 1, {"parts": [50]}),
         "rank 0 sent 999 bytes for its 50 tokens"),
        (lambda: week13b.words_of("tokens", 7, 9, 1.0), "is for 9 tokens, your plan has 7"),
        (lambda: week14.commit.say("a", 1, 2, 3), "a: 1; it should be 2"),
        (lambda: difference(Fraction(1, 4), 1), "0.25; it is 1"),
        (lambda: global_mean.complaint("messages", SENT, SENT[:1] * 2, Case("", (2, {}))).finding,
         "rank 1 sent recv of 9 bytes; 2 ranks need send of 8 bytes"),
    ],
)  # fmt: skip
def test_each_number_of_a_finding_is_in_its_place(call, finding):
    try:
        said = call()
    except NotRight as wrong:
        said = wrong
    assert finding in str(said)

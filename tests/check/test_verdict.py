"""A verdict is true only when passed, and its text is escaped where it becomes HTML."""

import re

from helpers.check import solved
from helpers.check.verdict import Verdict


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

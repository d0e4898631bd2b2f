"""The benchmark of serving: its policies do the same work; its rows, table and chart."""

from dataclasses import replace

import pytest

from helpers.inference.engine.metrics import Outcome, Served
from helpers.models.gpt import build
from tests.bench import serving
from tests.bench.charts import drawn, written

SMALL = replace(serving.LLAMA, layers=1, width=16, heads=2, hidden=8, context=32)
NAMES = [serving.STATIC, serving.SPARING, serving.CONTINUOUS, serving.CHUNKED]


def test_all_policies_serve_the_same_and_a_table_is_made(tmp_path):
    shape = {"prompt": (3, 9), "new_tokens": 4.0, "most": 12}
    model = build(SMALL, 0).eval()
    rows = [row for seed in (0, 1) for row in serving.serve(model, seed, 5, 40, **shape)]
    assert [row["policy"] for row in rows] == NAMES * 4
    assert [row["load"] for row in rows] == ([1.2] * 4 + [float("inf")] * 4) * 2
    for row in rows:
        assert row["capacity"] > 0
        assert row["ratio"] == 1 or row["policy"] != serving.STATIC
        assert 0 < row["ttft p50"] <= row["ttft p99"]
    report = serving.report(rows)
    assert [line[:2] for line in report.table[1:]] == [
        [load, name] for load in ("1.2 × capacity", "all at once") for name in NAMES
    ]
    assert report.table[3][3].count(",") == 1  # a ratio for each seed
    assert "each of 2 seeds" in report.notes
    assert len(written(report, tmp_path)) == 16
    first, second, last = drawn("serving", tmp_path).axes
    assert [axes.get_title("left") for axes in (first, second)] == ["1.2 × capacity", "all at once"]
    assert [text.get_text() for text in first.get_yticklabels()] == NAMES
    assert last.get_xscale() == "log"


def test_the_blocks_are_those_of_a_static_batch_of_the_longest():
    assert serving.BLOCKS * serving.SIZE == serving.MOST * (64 + 256)
    assert serving.LLAMA.context >= 64 + 256


def test_other_numbers_of_tokens_are_not_compared():
    def served(tokens):
        one = Outcome(
            number=0, prompt=1, arrival=0.0, tokens=tokens, times=tuple(map(float, tokens)),
            reason="length", ended=3.0, spans=(),
        )  # fmt: skip
        return Served(policy=None, requests=[one], steps=[], blocks=1)

    serving.check_equal({(1.2, "a"): served((1, 2)), (1.2, "b"): served((3, 4))})
    with pytest.raises(AssertionError, match="different numbers of tokens"):
        serving.check_equal({(1.2, "a"): served((1, 2)), (1.2, "b"): served((1,))})

"""The benchmark of decoding: its contenders do the same work; its rows, table and chart."""

import shutil
from dataclasses import replace

import pytest
import torch

from helpers.inference.decoder.fused import Fused
from helpers.models.gpt import kept_by
from tests.bench import decoding
from tests.bench.charts import drawn, written

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
SMALL = replace(decoding.LLAMA, layers=2, width=32, heads=4, kv_heads=2, hidden=24, context=64)


@needs_compiler
def test_all_contenders_decode_the_same_tokens_and_a_table_is_made(tmp_path):
    model = decoding.varied(SMALL)
    theirs = decoding.transformers_model(model)
    rows = decoding.sized(model, theirs, 3, 6, rounds=2)
    ours = [decoding.OURS, decoding.OPERATORS]
    assert [row["contender"] for row in rows] == [*ours, decoding.DYNAMIC, decoding.STATIC]
    assert {row["peer"] for row in rows} < {decoding.DYNAMIC, decoding.STATIC}
    rows += decoding.over_context(model, 2, (8, 16, 24), rounds=2)
    report = decoding.report(rows)
    assert report.table[1][:2] == ["3", "6"]
    assert "One step of batch 2 takes" in report.notes
    assert len(written(report, tmp_path)) == 7
    left, right = drawn("decoding", tmp_path).axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["batch 3, 6 tokens"]
    assert right.lines[0].get_xdata().tolist() == [8, 16, 24]


def test_the_tokens_vary():
    model = decoding.varied(decoding.LLAMA)
    prompts = torch.tensor([[1, 2, 3]])
    [tokens] = decoding.decode_ours(Fused(model), kept_by(model), prompts, 24)
    assert len(set(tokens)) > 12


@needs_compiler
def test_other_tokens_are_not_compared(monkeypatch):
    model = decoding.varied(SMALL)
    theirs = decoding.transformers_model(model)
    with torch.no_grad():
        theirs.model.norm.weight.neg_()  # the least likely token comes first
    with pytest.raises(AssertionError, match="dynamic cache decodes other tokens than ours"):
        decoding.sized(model, theirs, 1, 3, rounds=1)


def test_the_peer_is_the_faster_cache():
    times = {decoding.OURS: [1.0, 1.0], decoding.DYNAMIC: [4.0, 4.0], decoding.STATIC: [2.0, 2.0]}
    ours, dynamic, static = decoding.rows_of(times, 1, 512)
    assert (ours["peer"], ours["ratio"], ours["goal"]) == (decoding.STATIC, 0.5, 0.45)
    assert (dynamic["ratio"], static["ratio"], static["goal"]) == (2.0, 1.0, "")


def test_a_line_and_its_largest_error():
    a, b, error = decoding.line([1, 2, 4], [3.0, 5.0, 9.0])
    assert (round(a, 9), round(b, 9), round(error, 9)) == (1, 2, 0)
    assert decoding.line([1, 2, 4], [3.0, 6.0, 9.0])[2] > 0.05

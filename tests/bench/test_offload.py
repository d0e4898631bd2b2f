"""The benchmark of offload: its contenders move and save what it says. No timing decides."""

import shutil

import pytest

from helpers.measure.trace import Span, Trace
from tests.bench import offload
from tests.bench.charts import written


def test_a_small_run_and_its_table(tmp_path):
    report = offload.measure(quick=True)
    rows = {(row["work"], row["contender"]): row for row in report.rows}
    assert len(written(report, tmp_path)) == len(rows) == 4 + 4 + 3 + bool(shutil.which("fio"))
    assert all(row["median"] > 0 for row in report.rows)
    for name in offload.BUFFERS:
        assert 0 <= rows["state on disk", name]["overlapped"] <= 1
    assert rows["state on disk", "1 buffer"]["overlapped"] < 1
    saved = [rows["activations", name]["saved"] for name in offload.ACTIVATIONS]
    assert saved[0] > saved[1] > saved[2] > 0
    assert (saved[3], rows["activations", "on the host"]["sent"]) == ("", saved[0])
    assert 0 <= rows["updates on the host", "in the backward"]["overlapped"] <= 1
    assert [line[3] == "" for line in report.table[1:]].count(True) == 3


def test_the_hidden_share_is_of_the_updates_time():
    """Updates of 3 s and of 1 s, the first beside the backward for 1 s: a quarter is hidden."""
    spans = [("backward", 0.0, 4.0), ("update", 3.0, 3.0), ("update", 7.0, 1.0), ("wait", 8.0, 1.0)]
    kinds = {"backward": "backward", "update": "optimizer", "wait": "wait"}
    trace = Trace(began=0.0)
    for lane, start, seconds in spans:
        trace.spans.append(Span(name="", lane=lane, kind=kinds[lane], start=start, seconds=seconds))
    assert offload.hidden(trace, "backward") == pytest.approx(1 / 4)
    assert offload.hidden(trace, "wait") == 0

"""A part of each benchmark runs, with few repeats. No timing decides a test."""

import itertools
import os
from types import SimpleNamespace

import psutil
import pytest

from tests.bench import data_parallel, faults, pipeline, starting, tensor_parallel, zero
from tests.bench.__main__ import main
from tests.bench.charts import drawn, written
from tests.bench.contenders import LAUNCH, SPAWN
from tests.bench.faults import FAULTS, Fault, Outcome
from tests.bench.kernel import Cell, Kernel
from tests.bench.leftovers import Around, around
from tests.bench.report import markdown

MiB = 2**20
NAMES = ("python3", "spare rank", "rank 0")
COSTS = {"wire": MiB, "kernel": None, "peak": 3 * MiB}
MEASURED = {
    (case, ranks): {c.name: [0.1, 0.2, None] for c in starting.CONTENDERS}
    for case, ranks in itertools.product(starting.LATER.values(), (2, 4))
}


def test_a_kernel_runs_cells_as_a_notebook_does():
    with Kernel() as kernel:
        done = kernel.run("import time; time.sleep(0.2); print('slept')")
        assert done.ok
        assert done.seconds >= 0.2
        assert "slept" in done.text
        failed = kernel.run("1 / 0")
        assert (failed.error, failed.seconds) == ("ZeroDivisionError", None)
        before = around(kernel)
        hung = kernel.run(
            "import subprocess, tempfile; tempfile.NamedTemporaryFile(delete=False);"
            "subprocess.run(['sleep', '60'], start_new_session=True)",
            patience=3,
        )
        assert hung.error is None
        assert around(kernel).new_since(before) == "1 process, 1 file"
        [sleeper] = kernel.descendants()
        kernel.interrupt()
        assert kernel.listen(10).error == "KeyboardInterrupt"
        assert kernel.time("pass") > 0
    assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE
    assert not kernel.folder.exists()


def test_a_call_is_measured_and_a_fault_is_done_told_and_survived():
    """Both desks use one kernel."""
    desk = faults.Desk(LAUNCH, ranks=2, culprit=1)
    with starting.Desk(LAUNCH, ranks=2) as calls:
        assert calls.call("all_reduce") > 0
        desk.kernel, calls.kernel.used = calls.kernel, True
        outcome = desk.do(FAULTS[0])
    assert outcome.seconds < faults.PATIENCE
    assert outcome.said == "names rank and cause"
    assert outcome.survived


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("rank 2 raised ValueError: the loss is not a number", "names rank and cause"),
        ("-- Process 2 terminated: the loss is not a number", "names rank and cause"),
        ("rank : 2 (local_rank: 2)", "names the rank"),
        ("rank 1: connection closed", "names other ranks"),
        ("rank 1: the loss is not a number", "names the cause, but other ranks"),
        ("something went wrong", "names neither"),
    ],
)
def test_whether_a_message_names_rank_and_cause(text, verdict):
    assert faults.said(Cell(None, text, "RuntimeError", 0.0), FAULTS[0], culprit=2) == verdict


def test_leftovers_are_counted_in_words():
    none = Around(frozenset(), frozenset(), frozenset())
    some = Around(frozenset({1, 2}), frozenset({("127.0.0.1", 5)}), frozenset())
    assert some.new_since(none) == "2 processes, 1 listening socket"
    assert none.new_since(some) == "none"


def test_spare_ranks_are_no_leftovers(tmp_path):
    children = [
        SimpleNamespace(pid=pid, name=lambda n=name: n) for pid, name in enumerate(NAMES, 1)
    ]
    kernel = SimpleNamespace(pid=os.getpid(), descendants=lambda: children, temporary=tmp_path)
    assert around(kernel).processes == {1, 3}


def test_the_table_of_starting(tmp_path):
    rows = written(starting.report(MEASURED), tmp_path)
    text = (tmp_path / "starting.md").read_text()
    assert "150 ms [1.0× (1.0 to 1.0)], hung or crashed 1 of 3 times, 1.00 of it (goal 0.3)" in text
    assert "150 ms, hung or crashed 1 of 3 times (goal 8.0 ms)" in text
    assert len(rows) == 2 * 2 * len(starting.CONTENDERS)
    assert {row["seconds"] for row in rows} == {"0.10000 0.20000"}


def test_the_table_of_faults(tmp_path):
    outcomes = {
        ("a deed", LAUNCH.name): Outcome(0.31, "names rank and cause", True, "none"),
        ("a deed", SPAWN.name): Outcome(None, "", False, "1 process"),
        ("kernel killed", LAUNCH.name): Outcome(0.31, "", None, "none"),
    }
    report = faults.report(outcomes)
    assert len(written(report, tmp_path)) == 3
    assert [row[1] for row in report.table[1:]] == [
        "0.3 s, names rank and cause",
        "all gone after 0.3 s",
    ]
    assert report.table[1][-1] == "> 20 s, **next call fails**, left: 1 process"


def test_the_table_and_chart_of_tensor_parallel(tmp_path):
    peers = tensor_parallel.DTENSOR.values()
    times = {name: [0.1 + 0.1 * (name in peers)] * 4 for name in tensor_parallel.CONTENDERS}
    costs = dict.fromkeys(times, COSTS)
    rows = [row for n in tensor_parallel.ROUNDS for row in tensor_parallel.rows_of(n, times, costs)]
    report = tensor_parallel.report(rows)
    assert len(written(report, tmp_path)) == 16
    first, second = report.table[1:3]
    assert first[:5] == ["128", "DTensor", "200 ms", "", ""]
    assert second[:4] == ["128", "tensor", "100 ms", "0.50 (0.50–0.50)"]
    assert second[4:] == ["≤ 0.85", "3.0 MiB", "1.000", "1.0 MiB", "unknown"]
    figure = drawn("tensor_parallel", tmp_path)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["128 tokens", "512 tokens"]
    assert "0.50×" in [text.get_text() for text in figure.axes[0].texts]


def test_the_table_and_the_chart_of_pipelines(tmp_path):
    times = {pipeline.OURS: [0.1] * 4, pipeline.THEIRS: [0.2] * 4}
    costs = {pipeline.OURS: COSTS | {"peak": 2 * MiB}, pipeline.THEIRS: COSTS}
    report = pipeline.report([pipeline.row(kind, times, costs) for kind in pipeline.KINDS])
    assert len(written(report, tmp_path)) == 4
    assert report.table[1][1:4] == ["100 ms", "200 ms", "0.50 (0.50–0.50)"]
    assert report.table[1][4:] == ["≤ 0.95", "2.0 MiB", "3.0 MiB"]
    figure = drawn("pipeline", tmp_path)
    assert [text.get_text() for text in figure.axes[0].texts] == ["200 ms", "0.50×"] * 4


def test_the_table_and_the_chart_of_zero(tmp_path):
    times = {name: [0.1 + 0.1 * (name in zero.PEERS)] * 4 for name in zero.CONTENDERS}
    report = zero.report(zero.rows_of(times, dict.fromkeys(times, COSTS)))
    assert len(written(report, tmp_path)) == 9
    assert report.table[2][:4] == ["stage 1", "100 ms", "0.50 (0.50–0.50)", "≤ 1.00"]
    texts = [text.get_text() for text in drawn("zero", tmp_path).axes[0].texts]
    assert texts == ["200 ms", "0.50×", "0.50×"] * 3


@pytest.mark.parametrize("name", [data_parallel.SHARED, "naive"])
def test_contenders_train_the_same_model_and_their_bytes_are_counted(tmp_path, monkeypatch, name):
    """A small run of the engine that times training steps, on real ranks."""
    monkeypatch.setattr(data_parallel, "PRESET", "1M")
    monkeypatch.setattr(data_parallel, "TOKENS", {"an eighth of the tokens": 8})
    wraps = {one: data_parallel.WRAPS[one] for one in (data_parallel.PEER, name)}
    monkeypatch.setattr(data_parallel, "WRAPS", wraps)
    peer, ours = data_parallel.measure(quick=True).rows
    assert (peer["contender"], ours["contender"]) == (data_parallel.PEER, name)
    assert ours["median"] > 0
    assert ours["model_states"] == pytest.approx(peer["model_states"], rel=0.01)
    assert (ours["wire"] == 0) == (name == data_parallel.SHARED)


def test_a_table_is_markdown():
    assert markdown([["a", "b"], ["long", "c"]]).splitlines() == [
        "| a    | b |",
        "|------|---|",
        "| long | c |",
    ]


def test_an_unknown_benchmark_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["no_such"])
    assert "no benchmark is named no_such" in capsys.readouterr().err


def test_every_fault_has_a_deed_and_a_name_of_its_own():
    assert len({fault.title for fault in FAULTS}) == len(FAULTS)
    assert all(isinstance(fault, Fault) for fault in FAULTS)

"""A part of each benchmark runs, with few repeats. No timing decides a test."""

import csv
import itertools
import runpy
from pathlib import Path

import psutil
import pytest

from tests.bench import faults, pipeline, starting, tensor_parallel, zero
from tests.bench.__main__ import main
from tests.bench.contenders import LAUNCH, SPAWN
from tests.bench.faults import FAULTS, Fault, Outcome
from tests.bench.kernel import Cell, Kernel
from tests.bench.leftovers import Around, around
from tests.bench.report import FIGURES, markdown

MiB = 2**20
MEASURED = {
    (case, ranks): {c.name: [0.1, 0.2, None] for c in starting.CONTENDERS}
    for case, ranks in itertools.product(starting.LATER.values(), (2, 4))
}


@pytest.mark.alone
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
            patience=1,
        )
        assert hung.error is None
        assert around(kernel).new_since(before) == "1 process, 1 file"
        [sleeper] = kernel.descendants()
        kernel.interrupt()
        assert kernel.listen(10).error == "KeyboardInterrupt"
        assert kernel.time("pass") > 0
    assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE
    assert not kernel.folder.exists()


@pytest.mark.alone
def test_starting_measures_a_call():
    with starting.Desk(LAUNCH, ranks=2) as desk:
        assert desk.call("all_reduce") > 0


@pytest.mark.alone
def test_a_fault_is_done_told_and_survived():
    desk = faults.Desk(LAUNCH, ranks=2, culprit=1)
    try:
        outcome = desk.do(FAULTS[0])
    finally:
        desk.close()
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


def test_the_table_of_starting(tmp_path):
    report = starting.report(MEASURED)
    report.write(tmp_path)
    text = (tmp_path / "starting.md").read_text()
    assert "150 ms (goal 60 ms), hung or crashed 1 of 3 times" in text
    assert "[1.0× (1.0 to 1.0)]" in text
    with (tmp_path / "starting.csv").open() as file:
        assert file.readline().startswith("# ")
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * len(starting.CONTENDERS)
    assert {row["seconds"] for row in rows} == {"0.10000 0.20000"}


def test_the_table_of_faults(tmp_path):
    outcomes = {
        ("a deed", LAUNCH.name): Outcome(0.31, "names rank and cause", True, "none"),
        ("a deed", SPAWN.name): Outcome(None, "", False, "1 process"),
        ("kernel killed", LAUNCH.name): Outcome(0.31, "", None, "none"),
    }
    report = faults.report(outcomes)
    report.write(tmp_path)
    assert [row[1] for row in report.table[1:]] == [
        "0.3 s, names rank and cause",
        "all gone after 0.3 s",
    ]
    assert report.table[1][-1] == "> 20 s, **next call fails**, left: 1 process"


def test_the_table_and_chart_of_tensor_parallel(tmp_path):
    costs = {"wire": 2**20, "kernel": None, "peak": 3 * 2**20}
    rows = []
    for tokens in tensor_parallel.ROUNDS:
        for kind, peer in tensor_parallel.DTENSOR.items():
            for name in (peer, *tensor_parallel.OURS[kind]):
                times = [0.2] * 4 if name == peer else [0.1] * 4
                rows.append(tensor_parallel.row(tokens, name, times, [0.2] * 4, costs))
                rows[-1]["peak_ratio"] = 1.0
    report = tensor_parallel.report(rows)
    report.write(tmp_path)
    first, second = report.table[1:3]
    assert first[:5] == ["128", "DTensor", "200 ms", "", ""]
    assert second[:4] == ["128", "tensor", "100 ms", "0.50 (0.50–0.50)"]
    assert second[4:] == ["≤ 0.85", "3.0 MiB", "1.000", "1.0 MiB", "unknown"]
    figure = drawn("tensor_parallel", tmp_path)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["128 tokens", "512 tokens"]
    assert "0.50×" in [text.get_text() for text in figure.axes[0].texts]


def drawn(name: str, folder: Path):
    """The chart of the table in this folder; None for a table that is not there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FIGURES)
        draw = runpy.run_path(str(FIGURES / f"{name}_drawing.py"))["draw"]
    assert draw(folder / "nothing.csv") is None
    return draw(folder / f"{name}.csv")


def test_the_table_and_the_chart_of_pipelines(tmp_path):
    slowest = {pipeline.OURS: [0.1] * 4, pipeline.THEIRS: [0.2] * 4}
    peak = {pipeline.OURS: 2 * MiB, pipeline.THEIRS: 3 * MiB}
    report = pipeline.report([pipeline.row(kind, slowest, peak) for kind in pipeline.KINDS])
    report.write(tmp_path)
    assert report.table[1][1:4] == ["100 ms", "200 ms", "0.50 (0.50–0.50)"]
    assert report.table[1][4:] == ["≤ 0.95", "2.0 MiB", "3.0 MiB"]
    figure = drawn("pipeline", tmp_path)
    assert [text.get_text() for text in figure.axes[0].texts] == ["200 ms", "0.50×"] * 4


def test_the_table_and_the_chart_of_zero(tmp_path):
    costs = {"wire": MiB, "kernel": None, "peak": 3 * MiB}
    rows = []
    for peer, ours in zero.PEERS.items():
        slowest = {name: [0.1] * 4 for name in ours} | {peer: [0.2] * 4}
        for name, goal in {peer: None, **ours}.items():
            rows.append(zero.row(name, peer, goal, slowest, costs))
    report = zero.report(rows)
    report.write(tmp_path)
    assert report.table[2][:4] == ["stage 1", "100 ms", "0.50 (0.50–0.50)", "≤ 1.00"]
    figure = drawn("zero", tmp_path)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["200 ms", "0.50×", "0.50×"] * 3


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

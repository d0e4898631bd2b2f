"""Submissions are graded: right ones pass, and nothing else does, whatever it does."""

import csv
import json
import os
import textwrap
from pathlib import Path

import pytest

from helpers.check.grading import grade, sandbox, stand_in
from helpers.check.grading.sandbox import Limits

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    sandbox.bubblewrap() is None, reason="no sandbox: bubblewrap (bwrap) is missing or forbidden"
)

RIGHT = """
    def bubble_share(ranks, micro_batches, chunks=1):
        return (ranks - 1) / (chunks * micro_batches + ranks - 1)
"""


def solutions(week):
    """The source of the course's own solutions."""
    return (ROOT / "notebooks" / "solutions" / f"{week}.py").read_text()


def submit(folder, name, *cells):
    """A submitted notebook with these code cells."""
    path = folder / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [
        {"cell_type": "code", "metadata": {}, "source": textwrap.dedent(cell)} for cell in cells
    ]
    path.write_text(json.dumps({"cells": cells}))
    return path


def graded(folder, **options):
    return {(row.submission, row.exercise): row for row in grade.grade_all(folder, **options)}


def only(folder, *cells, name="bubble_share", **options):
    """The row of one exercise of one notebook."""
    submit(folder, "own", *cells)
    return graded(folder, **options)["own.ipynb", name]


def test_every_exercise_of_the_course_is_known():
    known = grade.exercises()
    assert known["week05_pipeline_parallel"] == [
        "pipeline_step",
        "order_1f1b",
        "fuse_messages",
        "bubble_share",
    ]
    assert len([name for names in known.values() for name in names]) > 30


# One of each kind: numbers; ranks; in place; actions; a kernel; a generator; objects in and out.
KINDS = {
    "week05": ("bubble_share", "order_1f1b", "place_axes"),
    "week01": ("ring_all_reduce",),
    "week02": ("find_flaw",),
    "week08": ("master_adam", "fused_update", "round_stochastically"),
}


@pytest.mark.parametrize(("week", "names"), list(KINDS.items()))
def test_the_course_s_own_solutions_pass(tmp_path, week, names, monkeypatch):
    monkeypatch.setattr(grade, "exercises", lambda: {week: list(names)})
    submit(tmp_path, week, solutions(week))
    rows = graded(tmp_path)
    assert {row.exercise: (row.passed, row.finding) for row in rows.values()} == dict.fromkeys(
        names, ("yes", "")
    )


def test_wrong_missing_and_unwritten(tmp_path):
    submit(
        tmp_path,
        "anna/week05_pipeline_parallel",
        "def bubble_share(ranks, micro_batches, chunks=1):\n    return ranks / micro_batches",
        "def order_1f1b(ranks, micro_batches):\n    raise NotImplementedError",
    )
    rows = {name: row for (_, name), row in graded(tmp_path).items()}
    assert rows["bubble_share"].passed == "no"
    assert "4" in rows["bubble_share"].finding
    assert (rows["order_1f1b"].passed, rows["order_1f1b"].finding) == ("no", "not written yet")
    assert rows["pipeline_step"].finding == "the notebook does not define it"
    assert {row.submission for row in rows.values()} == {"anna/week05_pipeline_parallel.ipynb"}


SAYS = {
    "exits": ("import sys\nsys.exit(0)", "SystemExit"),
    "leaves at once": ("import os\nos._exit(0)", "ended the process"),
    "crashes": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "ended the process"),
    "uses a verdict of its own": (
        "from helpers.check.verdict import Verdict\nreturn Verdict('bubble_share', 'passed')",
        "not what the exercise asks for",
    ),
    "replaces the judge when unpickled": (
        "class Evil:\n    def __reduce__(self):\n"
        "        return exec, ('import helpers.check.grading.grade as g; g.verdict = None',)\n"
        "return Evil()",
        "not what the exercise asks for",
    ),
    "reads the course's solution": (
        f"return open({str(ROOT / 'notebooks/solutions/week05.py')!r}).read()",
        "FileNotFoundError",
    ),
    "imports the course's check": (
        "from helpers.check.week05.share import measured_share\nreturn 0",
        "ModuleNotFoundError",
    ),
    "opens a connection": (
        "import socket\nsocket.create_connection(('192.0.2.1', 80), 3)",
        "unreachable",
    ),
    "writes a large file": (
        "with open('/tmp/x', 'wb') as f:\n    for _ in range(600):\n"
        "        f.write(bytes(1 << 20))\nreturn 0",
        "",
    ),
    "writes the course": (
        f"open({str(ROOT / 'helpers/check/direct.py')!r}, 'a').write('x')",
        "Read-only",
    ),
    "writes to every descriptor": (
        "import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, b'x' * 100)\n"
        "    except OSError:\n        pass\nreturn 0",
        "",
    ),
}


@pytest.mark.parametrize("what", SAYS)
def test_nothing_else_passes(tmp_path, what):
    body, finding = SAYS[what]
    own = "def bubble_share(ranks, micro_batches, chunks=1):\n" + textwrap.indent(body, "    ")
    row = only(tmp_path, own)
    assert row.passed == "no"
    assert finding in row.finding, row.finding
    assert grade.verdict is not None


def test_a_function_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(stand_in, "SECONDS", 3.0)
    row = only(tmp_path, "def bubble_share(*_):\n    while True:\n        pass")
    assert row.passed == "no"
    assert "has not returned after" in row.finding


def test_too_much_memory(tmp_path):
    own = "import time\ndef bubble_share(*_):\n    x = bytearray(1 << 30)\n    time.sleep(20)"
    row = only(tmp_path, own, limits=Limits(memory_bytes=900 << 20))
    assert "used more than 900 MB of memory" in row.finding


def test_too_many_processes(tmp_path):
    own = (
        "import os, time\ndef bubble_share(*_):\n    for _ in range(60):\n"
        "        if os.fork() == 0:\n            time.sleep(30)\n            os._exit(0)\n"
        "    time.sleep(20)"
    )
    row = only(tmp_path, own, limits=Limits(processes=30))
    assert "started more than 30 processes" in row.finding


def test_cells_that_train_or_check_do_not_run(tmp_path):
    row = only(tmp_path, "raise SystemExit", "import time\ntime.sleep(1000)", RIGHT)
    assert row.passed == "yes"


def test_the_last_definition_counts(tmp_path):
    assert only(tmp_path, "def bubble_share(*_):\n    return 0", RIGHT).passed == "yes"
    assert only(tmp_path, RIGHT, "def bubble_share(*_):\n    return 0").passed == "no"


def test_what_is_no_notebook(tmp_path):
    (tmp_path / "week05_pipeline_parallel.ipynb").write_text("no json")
    rows = graded(tmp_path)
    assert {row.passed for row in rows.values()} == {"no"}
    assert len(rows) == 4


def test_the_table(tmp_path, capsys):
    submit(tmp_path, "bo", RIGHT)
    submit(tmp_path, ".ipynb_checkpoints/bo", RIGHT)
    grade.main([str(tmp_path)])
    with (tmp_path / "grades.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"submission": "bo.ipynb", "exercise": "bubble_share", "passed": "yes", "finding": ""}
    ]
    assert "1 of 1 passed" in capsys.readouterr().out


def test_without_a_sandbox_it_asks(tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "bubblewrap", lambda: None)
    with pytest.raises(SystemExit, match="no sandbox on this machine"):
        grade.main([str(tmp_path)])
    with pytest.raises(SystemExit, match="there is no folder"):
        grade.main([str(tmp_path / "none")])


def test_trusted_submissions_run_without_a_sandbox(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: None)
    assert only(tmp_path, RIGHT, trusted=True).passed == "yes"
    with pytest.raises(RuntimeError, match="no sandbox"):
        only(tmp_path, RIGHT)


def test_nothing_is_left(tmp_path):
    before = set(os.listdir("/tmp"))
    only(tmp_path, "import os\ndef bubble_share(*_):\n    os.fork()\n    return 0")
    assert not {name for name in set(os.listdir("/tmp")) - before if name.startswith("grade-")}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n  b", "a b"),
        ("=1+1", "'=1+1"),
        ("\x1b[31mred", "[31mred"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_a_finding_is_one_harmless_line(text, line):
    assert grade.one_line(text) == line

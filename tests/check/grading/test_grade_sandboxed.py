"""Submissions are graded: right ones pass, and nothing else does, whatever it does."""

import json
import textwrap
from pathlib import Path

import pytest

from helpers.check.grading import grade, sandbox, stand_in, submissions
from helpers.check.grading.grade import How
from helpers.check.grading.sandbox import Limits, NotStarted

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    sandbox.bubblewrap() is None, reason="no sandbox: bubblewrap (bwrap) is missing or forbidden"
)

RIGHT = """
    def bubble_share(ranks, micro_batches, chunks=1):
        return (ranks - 1) / (chunks * micro_batches + ranks - 1)
"""


NEEDS_A = RIGHT.replace("chunks=1", "chunks=1, a=A")


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


def graded(folder, jobs=1, **options):
    rows = grade.grade_all(folder, How(**options), jobs)
    return {(row.submission, row.exercise): row for row in rows}


def only(folder, *cells, name="bubble_share", **options):
    """The row of one exercise of one notebook."""
    submit(folder, "own", *cells)
    return graded(folder, **options)["own.ipynb", name]


# One of each week; among them numbers, ranks, in place, actions, a kernel, a generator, objects.
WEEKS = {
    "week01": "ring_all_reduce",
    "week02": "find_flaw",
    "week03": "accumulate",
    "week04": "message_bytes",
    "week05": "order_1f1b",
    "week06": "shard_flat",
    "week07": "reshard_rows",
    "week08": "fused_update",
    "week09": "block_allocator",
    "week10": "scan_over_ranks",
    "week11": "delayed_step",
    "week12": "mix_over_ranks",
    "week13": "pipeline_seconds",
    "week14": "commit",
}


@pytest.mark.usefixtures("one_sandbox")
@pytest.mark.parametrize(("week", "name"), list(WEEKS.items()))
def test_the_course_s_own_solution_passes(tmp_path, week, name, monkeypatch):
    """Inputs are drawn; the rest of the notebook is the same, so all others are left out."""
    monkeypatch.setattr(grade, "exercises", lambda: {week: [name]})
    submit(tmp_path, week, solutions(week))
    row = graded(tmp_path, secret=5)[f"{week}.ipynb", name]
    assert (row.passed, row.finding) == ("yes", "")
    assert row.seconds > 0 or name not in ("ring_all_reduce", "accumulate")  # quick ones round to 0


def test_every_week_is_tried():
    assert sorted(WEEKS) == sorted({stem[:6] for stem in submissions.exercises()})


@pytest.mark.usefixtures("one_sandbox")
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
    "crashes": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "with SIGSEGV"),
    "uses a verdict of its own": (
        "from helpers.check.verdict import Verdict\nreturn Verdict('bubble_share', 'passed')",
        "returned a value of type helpers.check.verdict.Verdict",
    ),
    "replaces the judge when unpickled": (
        "class Evil:\n    def __reduce__(self):\n"
        "        return exec, ('import helpers.check.grading.grade as g; g.verdict = None',)\n"
        "return Evil()",
        "your function returned a value of type __main__.Evil",
    ),
    "reads the course's solution": (
        f"return open({str(ROOT / 'notebooks/solutions/week05.py')!r}).read()",
        "FileNotFoundError",
    ),
    "imports the course's check": (
        "from helpers.check.week05.schedules import measured_share\nreturn 0",
        "ModuleNotFoundError",
    ),
    "opens a connection": (
        "import socket\nsocket.create_connection(('192.0.2.1', 80), 3)",
        "unreachable",
    ),
    "writes a large file": (
        "with open('/tmp/x', 'wb') as f:\n    for _ in range(600):\n"
        "        f.write(bytes(1 << 20))\nreturn 0",
        "OSError: [Errno 27] File too large",
    ),
    "writes the course": (
        f"open({str(ROOT / 'helpers/check/answers.py')!r}, 'a').write('x')",
        "Read-only",
    ),
    "writes to every descriptor": (
        "import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, b'x' * 100)\n"
        "    except OSError:\n        pass\nreturn 0",
        "answered with a message of",
    ),
}


@pytest.mark.usefixtures("one_sandbox")
@pytest.mark.parametrize("what", SAYS)
def test_nothing_else_passes(tmp_path, what):
    body, finding = SAYS[what]
    own = "def bubble_share(ranks, micro_batches, chunks=1):\n" + textwrap.indent(body, "    ")
    row = only(tmp_path, own)
    assert row.passed == "no"
    assert finding in row.finding, row.finding
    assert grade.verdict is not None


@pytest.mark.usefixtures("one_sandbox")
def test_a_function_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(stand_in, "SECONDS", 3.0)
    row = only(tmp_path, "def bubble_share(*_):\n    while True:\n        pass")
    assert row.passed == "no"
    assert "has not returned after" in row.finding


@pytest.mark.usefixtures("one_sandbox")
def test_definitions_that_never_end(tmp_path, monkeypatch):
    monkeypatch.setattr(stand_in, "DEFINE_SECONDS", 3.0)
    row = only(tmp_path, "class A:\n    while True:\n        pass", NEEDS_A)
    assert (row.passed, row.finding) == ("no", "the definitions have not ended after 3 s")


@pytest.mark.usefixtures("one_sandbox")
def test_definitions_that_leave(tmp_path):
    row = only(tmp_path, "class A:\n    import os\n    os._exit(0)", NEEDS_A)
    assert row.finding == "your function has ended the process with exit code 0"


def test_all_calls_together_have_a_limit(tmp_path):
    own = "import time\ndef bubble_share(p, m, v=1):\n    time.sleep(1)\n"
    own += "    return (p - 1) / (v * m + p - 1)"
    row = only(tmp_path, own, limits=Limits(seconds=2.5))
    assert "taken more than 2 seconds in all" in row.finding


@pytest.mark.usefixtures("one_sandbox")
def test_cells_that_train_or_check_do_not_run(tmp_path):
    row = only(tmp_path, "raise SystemExit", "import time\ntime.sleep(1000)", RIGHT)
    assert row.passed == "yes"


@pytest.mark.usefixtures("one_sandbox")
def test_another_name_for_the_function(tmp_path):
    assert (
        only(tmp_path, RIGHT.replace("bubble_share", "mine"), "bubble_share = mine").passed == "yes"
    )


def test_two_at_a_time_in_order(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        submit(tmp_path, name, RIGHT)
    submit(tmp_path, "b", "def bubble_share(*_):\n    return 0")
    monkeypatch.setattr(grade, "Sandbox", None)  # other processes have their own
    rows = graded(tmp_path, jobs=2)
    assert [(name, row.passed) for (name, _), row in rows.items()] == [
        ("a.ipynb", "yes"),
        ("b.ipynb", "no"),
        ("c.ipynb", "yes"),
    ]


def test_when_a_sandbox_does_not_start_the_others_are_graded(tmp_path, monkeypatch):
    submit(tmp_path, "a", RIGHT)
    submit(tmp_path, "b", RIGHT)
    plain, starts = grade.Sandbox, []

    def sometimes(*args):
        starts.append(args)
        if len(starts) == 1:
            raise NotStarted("the machine is too busy")
        return plain(*args)

    monkeypatch.setattr(grade, "Sandbox", sometimes)
    rows = list(graded(tmp_path).values())
    assert [row.passed for row in rows] == ["not graded", "yes"]
    assert rows[0].finding == "the machine is too busy"


def test_trusted_submissions_run_without_a_sandbox(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: None)
    assert only(tmp_path, RIGHT, trusted=True).passed == "yes"
    row = only(tmp_path, RIGHT)
    assert (row.passed, "no sandbox" in row.finding) == ("not graded", True)

"""Submissions are graded: right ones pass, and nothing else does, whatever it does."""

import json
import textwrap
from pathlib import Path

import pytest

from helpers.check.grading import grade, sandbox, stand_in
from helpers.check.grading.grade import How
from helpers.check.grading.sandbox import NotStarted
from helpers.check.grading.submissions import Task
from tests.check.grading.conftest import NEEDS_SANDBOX

ROOT = Path(__file__).parents[3]

pytestmark = [NEEDS_SANDBOX, pytest.mark.usefixtures("one_sandbox", "shared_ranks")]

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
    rows = grade.grade_all(folder, How(**options))
    return {(row.submission, row.exercise): row for row in rows}


def only(folder, *cells):
    """The row of the one exercise of a notebook."""
    submit(folder, "own", *cells)
    return graded(folder)["own.ipynb", "bubble_share"]


# An exercise of each kind: messages, ranks, texts, actions, a kernel, objects, a plan, a store.
KINDS = {
    "week01": "ring_all_reduce",
    "week02": "find_flaw",
    "week05": "order_1f1b",
    "week06": "shard_flat",
    "week07": "reshard_rows",
    "week08": "fused_update",
    "week09": "block_allocator",
    "week13": "better_plan",
    "week14": "commit",
}


@pytest.mark.parametrize(("week", "name"), list(KINDS.items()))
def test_the_course_s_own_solution_passes(tmp_path, week, name, monkeypatch):
    """Inputs are drawn; the rest of the notebook is the same, so all others are left out."""
    monkeypatch.setattr(grade, "exercises", lambda: {week: [name]})
    submit(tmp_path, week, solutions(week))
    row = graded(tmp_path, secret=5)[f"{week}.ipynb", name]
    assert (row.passed, row.finding) == ("yes", "")
    assert row.seconds > 0 or name != "ring_all_reduce"  # quick ones round to 0


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
        "import os\nfile = os.memfd_create('x')\nfor _ in range(600):\n"
        "    os.write(file, bytes(1 << 20))\nreturn 0",
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
    "leaves at once": ("import os\nos._exit(0)", "ended the process with exit code 0"),
    "never ends": ("while True:\n    pass", "has not returned after"),
}  # the last three end their sandbox


@pytest.mark.parametrize("what", SAYS)
def test_nothing_else_passes(what, monkeypatch):
    monkeypatch.setattr(stand_in, "SECONDS", 60.0 if what != "never ends" else 2.0)
    body, finding = SAYS[what]
    own = "def bubble_share(ranks, micro_batches, chunks=1):\n" + textwrap.indent(body, "    ")
    row = grade.graded(Task(submission="a", exercise="bubble_share", sources=[own]), How())
    assert row.passed == "no"
    assert finding in row.finding, row.finding
    assert grade.verdict is not None


def test_cells_that_train_or_check_do_not_run(tmp_path):
    row = only(tmp_path, "raise SystemExit", "import time\ntime.sleep(1000)", RIGHT)
    assert row.passed == "yes"


def test_another_name_for_the_function(tmp_path):
    assert (
        only(tmp_path, RIGHT.replace("bubble_share", "mine"), "bubble_share = mine").passed == "yes"
    )


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


def test_without_a_sandbox_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "Sandbox", sandbox.Sandbox)
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: None)
    row = only(tmp_path, RIGHT)
    assert (row.passed, "no sandbox" in row.finding) == ("not graded", True)

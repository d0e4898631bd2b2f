"""What a folder of submissions has to grade, whatever else is in it."""

import json
import os

import pytest

from helpers import check
from helpers.check.grading.submissions import NOT_GRADED, exercises, found_in, ignored
from tests.check.grading.test_reading import notebook

KNOWN = {"week05_pipeline": ["bubble_share", "order_1f1b"], "week03_data": ["train_by_mpi"]}
SHARE = "def bubble_share(): pass"


def rows(folder):
    """{(submission, exercise): finding, or None for a function that is to run}"""
    found = {}
    for task in found_in(folder, KNOWN):
        if task.row:
            assert (task.row.submission, task.row.exercise) == (task.submission, task.exercise)
            skipped = task.exercise in NOT_GRADED
            assert task.row.passed == ("not graded" if skipped else "no")
        found[task.submission, task.exercise] = task.row and task.row.finding
    return found


def test_the_exercises_are_those_that_the_notebooks_check():
    known = exercises()
    assert known["week05_pipeline_parallel"] == [
        "pipeline_step", "order_1f1b", "fuse_messages", "bubble_share",
    ]  # fmt: skip
    weeks = check.progress().weeks
    assert {name for names in known.values() for name in names} == {
        name for names in weeks.values() for name in names
    }
    assert {stem[:6] for stem, names in known.items() if names} == {
        f"week{int(week.removeprefix('week ')):02}" for week in weeks
    }


def test_expected_found_and_not_graded(tmp_path):
    notebook(tmp_path / "week05_pipeline (1).ipynb", SHARE)
    notebook(tmp_path / "week03_data.ipynb", "def train_by_mpi(): pass", SHARE)
    notebook(tmp_path / "own.ipynb", "def order_1f1b(:")
    found = rows(tmp_path)
    assert found.pop(("own.ipynb", "order_1f1b")).startswith("its cell cannot be read: SyntaxError")
    assert found == {
        ("week05_pipeline (1).ipynb", "bubble_share"): None,
        ("week05_pipeline (1).ipynb", "order_1f1b"): "the notebook does not define it",
        ("week03_data.ipynb", "train_by_mpi"): NOT_GRADED["train_by_mpi"],
        ("week03_data.ipynb", "bubble_share"): None,
    }


def test_a_task_has_the_sources_that_its_function_needs(tmp_path):
    cells = "import math\nN = 3", "def order_1f1b(): return N", SHARE, "def help(): pass"
    notebook(tmp_path / "week05_pipeline.ipynb", *cells)
    share, order = found_in(tmp_path, KNOWN)
    assert (share.exercise, share.sources, share.row) == ("bubble_share", [SHARE], None)
    assert (order.exercise, order.sources) == ("order_1f1b", ["N = 3", cells[1]])


def test_exercises_of_no_week_come_in_the_order_of_their_names(tmp_path):
    notebook(tmp_path / "own.ipynb", "def train_by_mpi(): pass", "def order_1f1b(): pass", SHARE)
    (tmp_path / "week05_pipeline.ipynb").write_text("{")
    assert list(rows(tmp_path)) == [
        ("own.ipynb", "bubble_share"),
        ("own.ipynb", "order_1f1b"),
        ("own.ipynb", "train_by_mpi"),
        ("week05_pipeline.ipynb", "bubble_share"),
        ("week05_pipeline.ipynb", "order_1f1b"),
    ]
    assert rows(tmp_path)["week05_pipeline.ipynb", "order_1f1b"].startswith("the file is no")


def test_every_notebook_has_a_row(tmp_path):
    notebook(tmp_path / "empty.ipynb")
    notebook(tmp_path / "other.ipynb", "def mine(): pass")
    (tmp_path / "damaged.IPYNB").write_text("{")
    assert {name for name, _ in rows(tmp_path)} == {"empty.ipynb", "other.ipynb", "damaged.IPYNB"}
    assert rows(tmp_path)["empty.ipynb", "?"] == "the notebook defines no exercise of the course"


def test_two_of_one_student_and_copies_of_jupyter(tmp_path):
    copies = ("anna/.ipynb_checkpoints/a.ipynb", "anna/START.ipynb")
    for name in ("anna/a.ipynb", "anna/b.ipynb", *copies):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        notebook(tmp_path / name, SHARE)
    assert [name for name, _ in rows(tmp_path)] == ["anna/a.ipynb", "anna/b.ipynb"]


def test_links_lead_nowhere(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    notebook(tmp_path / "out" / "own.ipynb", SHARE)
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "own.ipynb").symlink_to(tmp_path / "out" / "own.ipynb")
    assert rows(tmp_path / "in") == {("own.ipynb", "?"): "a link is no notebook"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("=cmd|' C'!A0.ipynb", "'=cmd|' C'!A0.ipynb"),
        ('a,b\n\x1b[31m".ipynb', 'a,b [31m".ipynb'),
        ("Zoë 学生.ipynb", "Zoë 学生.ipynb"),
        (os.fsdecode(b"\xff\xfe.ipynb"), "??.ipynb"),
    ],
)
def test_names_that_a_table_or_a_terminal_would_not_bear(tmp_path, name, shown):
    notebook(tmp_path / name, SHARE)
    ((submission, _),) = rows(tmp_path)
    assert submission == shown


def test_files_that_are_no_notebooks_are_named(tmp_path):
    folder = tmp_path / ".course" / "given"  # a folder above with a dot hides nothing
    for name in ("week05.py", "b/c\td.txt", "b/grades.csv", "grades.csv", ".hidden", ".git/x",
                 "a.ipynb", "b.IPYNB", "=x", "scores.csv", "feedback/anna.html"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"cells": []}))
    table = folder / "b" / ".." / "grades.csv"
    assert ignored(folder, table) == ["'=x", "b/c d.txt", "b/grades.csv", "week05.py"]

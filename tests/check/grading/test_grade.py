"""The command that grades: its options, its table, and what becomes of a check that breaks off."""

import csv
import re
import subprocess
import sys

import pytest

from helpers.check.elsewhere import Failed
from helpers.check.grading import grade, inside, submissions
from helpers.check.grading.grade import How
from helpers.check.grading.sandbox import Limits, NotStarted
from helpers.check.grading.table import Grade
from helpers.check.limit import TooLong
from tests.check.grading.conftest import NEEDS_SANDBOX
from tests.check.grading.test_grade_sandboxed import RIGHT, submit


@pytest.fixture(autouse=True)
def some_sandbox(monkeypatch):
    monkeypatch.setattr(grade, "bubblewrap", lambda: "bwrap")


def test_options(tmp_path, monkeypatch, capsys):
    asked = []

    def nothing(*given):
        asked.append(given)
        return iter([])

    monkeypatch.setattr(grade, "grade_all", nothing)
    table = tmp_path / "table.csv"
    grade.main([str(tmp_path), "--jobs", "3", "--secret", "0", "--trust", "--to", str(table)])
    said = f"inputs of this run: --secret 0\ntable: {table}, with scores.csv and feedback/\n"
    assert capsys.readouterr().out.endswith(said)
    assert table.read_text().startswith("submission,")
    assert not (tmp_path / "grades.csv").exists()
    for jobs in ("0", "1"):
        grade.main([str(tmp_path), "--jobs", jobs])
        assert f"--secret {asked[-1][1].secret}\n" in capsys.readouterr().out
    grade.main([str(tmp_path)])
    assert [folder for folder, *_ in asked] == 4 * [tmp_path]
    assert [jobs for *_, jobs in asked] == [3, 1, 1, 1]
    assert asked[0][1] == How(trusted=True, secret=0)
    drawn = {how.secret for _, how, _ in asked[1:]}
    assert len(drawn) == 3
    assert all(2**64 < secret < 2**128 for secret in drawn)
    assert not any(how.trusted for _, how, _ in asked[1:])


def test_without_a_sandbox_it_asks(tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "bubblewrap", lambda: None)
    with pytest.raises(SystemExit, match="no sandbox on this machine"):
        grade.main([str(tmp_path)])
    for path in (str(tmp_path / "none"), __file__):
        with pytest.raises(SystemExit, match="there is no folder"):
            grade.main([path])


@NEEDS_SANDBOX
def test_the_table(tmp_path, capsys):
    """Two processes grade; the rows keep the order of the notebooks."""
    submit(tmp_path, "bo", RIGHT)
    submit(tmp_path, "cy", "x = 3")
    (tmp_path / "bo.py").write_text("")
    grade.main([str(tmp_path), "--secret", "8", "--jobs", "2"])
    with (tmp_path / "grades.csv").open(newline="") as file:
        row, other = csv.DictReader(file)
    assert (other["submission"], other["passed"]) == ("cy.ipynb", "no")
    seconds = row.pop("seconds")
    assert float(seconds) > 0
    assert len(seconds.split(".")[1]) == 1
    assert row == {
        "submission": "bo.ipynb",
        "exercise": "bubble_share",
        "passed": "yes",
        "finding": "",
    }
    said = capsys.readouterr().out
    for words in (
        "bo.ipynb  bubble_share: yes\n",
        "bo.ipynb  1 of 1",
        "not graded: bo.py\n",
        "1 of 2 passed, in ",
        "--secret 8",
    ):
        assert words in said
    assert re.search(r"passed, in \d+ s\n", said)


def test_a_stop_leaves_the_rows_so_far(tmp_path, monkeypatch, capsys):
    def stopped(*_):
        yield Grade(submission="a", exercise="mean", passed="yes")
        raise KeyboardInterrupt

    monkeypatch.setattr(grade, "grade_all", stopped)
    grade.main([str(tmp_path)])
    assert "a,mean,yes" in (tmp_path / "grades.csv").read_text()
    assert "stopped" in capsys.readouterr().out


def test_a_table_that_cannot_be_written(tmp_path):
    with pytest.raises(SystemExit, match="cannot write"):
        grade.main([str(tmp_path), "--to", str(tmp_path / "none" / "grades.csv")])


STARTED = []  # what each sandbox was given


class Beside:
    """A sandbox without walls: the program runs in this process."""

    def __init__(self, limits, trusted):
        STARTED.append((limits, trusted))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, order, seconds):
        return inside.answer(order)


@pytest.mark.parametrize(
    ("body", "row"),
    [
        ("raise NotImplementedError", ("no", "not written yet")),
        ("return 3", ("no", None)),
        ("return n", ("no", f"\n({grade.NAMES_ALONE})")),
        ("return (p - 1) / (v * m + p - 1)", ("yes", "")),
    ],
)
def test_what_is_said_of_an_answer(monkeypatch, body, row):
    monkeypatch.setattr(grade, "Sandbox", Beside)
    STARTED.clear()
    sources = [f"def bubble_share(p, m, v=1):\n    {body}"]
    task = submissions.Task(submission="a", exercise="bubble_share", sources=sources)
    how = How(trusted=True, limits=Limits(seconds=7), secret=3)
    passed, finding = grade.verdict(task, how)
    assert (passed, grade.NAMES_ALONE in finding) == (row[0], "return n" in body)
    assert (row[1] or "") in finding
    assert bool(finding) == (passed == "no")
    assert [(how.limits, True)] == STARTED


@pytest.mark.parametrize(
    ("error", "row"),
    [
        (TooLong(), ("no", "your function has not returned in time")),
        (Failed("it hangs"), ("no", "it hangs")),
        (Failed("a\nb"), ("no", "a\nb")),
        (NotStarted("too busy"), ("not graded", "too busy")),
        (KeyError("x"), ("no", "the check could not use the result: KeyError: 'x'")),
    ],
)
def test_a_check_that_breaks_off(monkeypatch, error, row):
    def check(_):
        raise error

    monkeypatch.setattr(grade, "Sandbox", Beside)
    monkeypatch.setattr(grade.check, "bubble_share", check)
    sources = ["def bubble_share(*given): return 3"]
    task = submissions.Task(submission="a", exercise="bubble_share", sources=sources)
    assert grade.verdict(task, How()) == row
    found = grade.graded(task, How())
    assert (found.submission, found.exercise, found.passed, found.finding) == (
        "a", "bubble_share", *row,
    )  # fmt: skip


@NEEDS_SANDBOX
def test_modules_beside_the_submissions_are_not_imported(tmp_path):
    """The command runs as the instructor, and may be called in the folder of the submissions."""
    for name in ("psutil", "argparse", "secrets", "cloudpickle", "json", "ast"):
        (tmp_path / f"{name}.py").write_text(f"open('{tmp_path}/{name} ran', 'w').close()")
    submit(tmp_path, "bo", "x = 3")
    line = [sys.executable, "-m", "helpers.check.grading.grade", "."]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert "the notebook defines no exercise of the course" in done.stdout, done.stderr
    assert not list(tmp_path.glob("* ran"))

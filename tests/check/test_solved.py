"""What is solved is remembered by the kernel, and in a student's work folder."""

import datetime
import json
import re

import pytest

from helpers import check
from helpers.check import solved
from helpers.check.verdict import Verdict

RIGHT, WRONG = Verdict("mean", "passed"), Verdict("mean", "wrong", "too large")
WEEKS = {"week 1": ["mean", "ring"], "week 2": ["fit"]}


@pytest.fixture(autouse=True)
def nothing_solved(monkeypatch, tmp_path):
    monkeypatch.setattr(solved, "_solved", {})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def work(tmp_path):
    (tmp_path / solved.MARK).write_text("{}")
    (tmp_path / "project").mkdir()
    return tmp_path


def test_only_a_passed_exercise_counts():
    solved.note("mean", WRONG)
    solved.note("fit", Verdict("fit", "not written yet"))
    assert solved.Progress.so_far(WEEKS).solved == {}
    before = datetime.date.today()
    solved.note("mean", RIGHT)
    found = solved.Progress.so_far(WEEKS)
    assert set(found.solved) == {"mean"}
    day = datetime.date.fromisoformat(found.solved["mean"])
    assert before <= day <= datetime.date.today()
    assert (found.count(WEEKS["week 1"]), found.count(WEEKS["week 2"])) == ("1 of 2", "0 of 1")


def test_outside_a_work_folder_no_file_is_written(tmp_path):
    solved._solved["mean"] = "2026-01-31"
    solved.note("mean", RIGHT)
    assert solved.Progress.so_far(WEEKS).solved == {"mean": "2026-01-31"}  # the first day
    solved._solved.clear()
    solved.note("mean", RIGHT)
    assert list(tmp_path.iterdir()) == []


def test_a_later_kernel_reads_the_file_and_keeps_the_first_day(work, monkeypatch):
    (work / solved.FILE).write_text(json.dumps({"mean": "2026-01-31"}))
    monkeypatch.chdir(work / "project")
    solved.note("mean", RIGHT)
    solved.note("ring", RIGHT)
    assert not (work / "project" / solved.FILE).exists()
    assert solved.Progress.so_far(WEEKS).solved["mean"] == "2026-01-31"  # the first day
    monkeypatch.setattr(solved, "_solved", {})
    found = solved.Progress.so_far(WEEKS)
    assert found.solved["mean"] == "2026-01-31"
    assert set(found.solved) == {"mean", "ring"}
    assert {path.name for path in work.iterdir()} == {".handed.json", ".progress.json", "project"}


def test_the_nearest_work_folder_counts_and_a_folder_is_no_mark(work, monkeypatch):
    (work / "project" / solved.MARK).mkdir()
    monkeypatch.chdir(work / "project")
    assert solved.work_folder() == work
    (work / "project" / solved.MARK).rmdir()
    (work / "project" / solved.MARK).write_text("")
    assert solved.work_folder() == work / "project"
    (work / "project" / solved.FILE).write_text('{"ä": 3}', encoding="utf-8")
    assert solved.Progress.so_far(WEEKS).solved == {"ä": "3"}


def test_a_file_has_a_line_for_each_exercise_in_the_order_of_names(work):
    for name in ("ring", "mean"):
        solved.note(name, RIGHT)
    lines = (work / solved.FILE).read_text().splitlines()
    assert [line.split('"')[1] for line in lines[1:-1]] == ["mean", "ring"]


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff"])
def test_a_damaged_file_counts_as_empty(work, content):
    (work / solved.FILE).write_bytes(content.encode("latin-1"))
    assert solved.Progress.so_far(WEEKS).solved == {}
    solved.note("mean", RIGHT)
    assert set(json.loads((work / solved.FILE).read_text())) == {"mean"}


@pytest.mark.parametrize("refused", [(solved.os, "replace"), (solved.Path, "write_text")])
def test_a_folder_that_cannot_be_written_fails_nothing(work, monkeypatch, refused):
    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(*refused, refuse)
    solved.note("mean", RIGHT)
    assert set(solved.Progress.so_far(WEEKS).solved) == {"mean"}
    assert {path.name for path in work.iterdir()} == {solved.MARK, "project"}


def test_it_draws_itself():
    found = solved.Progress(WEEKS, {"mean": "2026-01-31"})
    assert repr(found).splitlines() == [
        "week 1: 1 of 2   ✓ mean   · ring",
        "week 2: 0 of 1   · fit",
    ]
    html = found._repr_html_()
    assert html.count("solved on 2026-01-31") == html.count("color:white") == 1
    assert html.count("not solved yet") == 2
    cells = re.findall("<td style='text-align:(.*?)'>(.*?)</td>", html)
    assert [side for side, _ in cells] == ["left", "right", "left"] * 2
    texts = [re.sub("<.*?>", "", text) for _, text in cells]
    assert texts == ["week 1", "1 of 2", "mean ring", "week 2", "0 of 1", "fit"]


def test_the_course_s_checks_are_remembered_by_name():
    def optimal(*_):
        raise NotImplementedError

    assert not check.optimal(optimal)
    assert not check.progress().solved
    from notebooks.solutions.week02 import optimal

    assert check.optimal(optimal)
    assert set(check.progress().solved) == {"optimal"}
    weeks = check.progress().weeks
    assert list(weeks)[:3] == ["week 1", "week 2", "week 3"]
    assert "optimal" in weeks["week 2"]
    assert not {"project", "Verdict", "given_fit"} & {n for names in weeks.values() for n in names}

"""A notebook finds the programs that it runs: beside it, above it, or in the course's clone."""

import pytest

from helpers.runtime.course import NOTEBOOKS, course_file

NAME = "project/distributed.py"


def put(folder):
    path = folder / NAME
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.mark.parametrize("below", ["", "project"])
def test_the_student_s_own_copy_comes_first(tmp_path, monkeypatch, below):
    mine = put(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work" / below)
    assert course_file(NAME) == mine


def test_the_nearest_copy_comes_first(tmp_path, monkeypatch):
    put(tmp_path)
    mine = put(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    assert course_file(NAME) == mine


def test_a_notebook_alone_finds_it_in_the_clone(tmp_path, monkeypatch):
    (tmp_path / "project" / "distributed.py").mkdir(parents=True)  # a folder is no program
    monkeypatch.chdir(tmp_path)
    found = course_file(NAME)
    assert found == NOTEBOOKS / NAME
    assert "def " in found.read_text()


def test_a_file_that_nobody_has(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^project/mine.py is neither .* into /"):
        course_file("project/mine.py")

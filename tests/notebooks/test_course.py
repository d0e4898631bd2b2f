"""Which notebooks the course has, in which order, and what a cell of theirs is for."""

import pytest

from tests.conftest import ci


@pytest.fixture(scope="module")
def course():
    return ci("course")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), ["week01_b", "week02_a", "project"]),
        (("week01",), ["week01_b"]),
        (("project", "week01"), ["week01_b", "project"]),
    ],
)
def test_notebooks_in_order(course, tmp_path, words, found):
    folder = tmp_path / "notebooks"
    (folder / "project").mkdir(parents=True)
    for name in ("week02_a", "project/project", "week01_b", "mine"):
        (folder / f"{name}.ipynb").touch()
    assert [path.stem for path in course.find(tmp_path, words)] == found


def test_a_word_that_no_name_contains(course, tmp_path):
    with pytest.raises(SystemExit, match="no notebook's name contains 'week07'"):
        course.find(tmp_path, ["week07"])


def test_what_a_cell_is_for(course):
    kinds = ("slide", "notes", "skip")
    cells = [{"metadata": {"slideshow": {"slide_type": kind}}} for kind in kinds]
    cells += [{"metadata": {}}, {"metadata": {"slideshow": {}}}]
    assert [course.slide_type(cell) for cell in cells] == [*kinds, "-", "-"]
    assert [course.is_note(cell) for cell in cells] == [False, True, False, False, False]

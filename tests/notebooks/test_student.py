"""The folder for a student's own work: nothing that the student wrote is ever overwritten."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.conftest import ci


@pytest.fixture(scope="module")
def student():
    return ci("student")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "notebooks" / "project").mkdir(parents=True)
    (tmp_path / "notebooks" / ".ipynb_checkpoints").mkdir()
    course(tmp_path, "week01_a", "1 + 1")
    course(tmp_path, ".ipynb_checkpoints/week01_a", "old")
    (tmp_path / "notebooks" / "project" / "train.py").write_text("print('train')\n")
    return tmp_path


def course(root, name, source):
    """A notebook of the course, with an output, and a note for the speaker."""
    cell = new_code_cell(source, execution_count=3, id="one")
    cell.outputs = [new_output("stream", text="2\n")]
    notes = new_markdown_cell("In class. Ask.", id="note")
    notes.metadata.slideshow = {"slide_type": "notes"}
    nb = new_notebook(cells=[cell, notes])
    nb.metadata.executed = {"sources": "abc"}
    nbformat.write(nb, root / "notebooks" / f"{name}.ipynb")


def source(path):
    return nbformat.read(path, as_version=4).cells[0].source


def names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_notebooks_without_outputs_and_the_scripts_beside_them(student, root):
    lines = student.offer(root, root / "work")
    assert lines == ["new files: 2"]
    assert names(root / "work") == [student.HANDED, "project/train.py", "week01_a.ipynb"]
    nb = nbformat.read(root / "work" / "week01_a.ipynb", as_version=4)
    assert [cell.id for cell in nb.cells] == ["one"]
    assert nb.cells[0].outputs == []
    assert nb.cells[0].execution_count is None
    assert "executed" not in nb.metadata
    assert nbformat.read(root / "notebooks" / "week01_a.ipynb", as_version=4).cells[0].outputs


def test_the_second_time_changes_nothing(student, root):
    work = root / "work"
    student.offer(root, work)
    before = {name: (work / name).read_bytes() for name in names(work)}
    assert student.offer(root, work) == []
    assert {name: (work / name).read_bytes() for name in names(work)} == before


def test_what_the_student_wrote_stays_and_the_new_version_comes_beside(student, root):
    work = root / "work"
    student.offer(root, work)
    mine = work / "week01_a.ipynb"
    mine.write_text(mine.read_text().replace("1 + 1", "my answer"))
    course(root, "week01_a", "1 + 2")
    (line,) = student.offer(root, work)
    assert "week01_a.new.ipynb" in line
    assert source(mine) == "my answer"
    assert source(work / "week01_a.new.ipynb") == "1 + 2"
    assert student.offer(root, work) == []  # offered once
    course(root, "week01_a", "1 + 3")  # and once more, beside both
    student.offer(root, work)
    assert source(mine) == "my answer"
    assert source(work / "week01_a.new.ipynb") == "1 + 2"
    assert source(work / "week01_a.new-2.ipynb") == "1 + 3"


def test_an_unchanged_file_follows_the_course(student, root):
    work = root / "work"
    student.offer(root, work)
    course(root, "week01_a", "1 + 2")
    course(root, "week02_b", "new week")
    lines = student.offer(root, work)
    assert lines[0] == "new files: 1"
    assert "you had not changed it" in lines[1]
    assert source(work / "week01_a.ipynb") == "1 + 2"
    assert source(work / "week02_b.ipynb") == "new week"
    mine = work / "week01_a.ipynb"
    mine.write_text(mine.read_text().replace("1 + 2", "my answer"))
    course(root, "week01_a", "1 + 3")
    student.offer(root, work)
    assert source(mine) == "my answer"


def test_a_new_output_alone_is_no_new_version(student, root):
    student.offer(root, root / "work")
    nb = nbformat.read(path := root / "notebooks" / "week01_a.ipynb", as_version=4)
    nb.cells[0].outputs[0].text = "3\n"
    nbformat.write(nb, path)
    assert student.offer(root, root / "work") == []


def test_a_file_of_the_student_s_that_has_the_name_of_a_new_one_stays(student, root):
    work = root / "work"
    work.mkdir()
    nbformat.write(new_notebook(cells=[new_code_cell("mine")]), work / "week01_a.ipynb")
    student.offer(root, work)
    assert source(work / "week01_a.ipynb") == "mine"
    assert source(work / "week01_a.new.ipynb") == "1 + 1"


def test_a_student_who_goes_back_to_the_course_s_version_follows_again(student, root):
    work = root / "work"
    student.offer(root, work)
    mine = work / "week01_a.ipynb"
    given = mine.read_text()
    mine.write_text(given.replace("1 + 1", "my answer"))
    course(root, "week01_a", "1 + 2")
    student.offer(root, work)
    mine.write_text(given)
    course(root, "week01_a", "1 + 3")
    (line,) = student.offer(root, work)
    assert "you had not changed it" in line
    assert source(mine) == "1 + 3"


def test_an_interrupted_offer_goes_on_where_it_was(student, root, monkeypatch):
    course(root, "week02_b", "2")
    read = student.without_outputs

    def interrupted(path):
        if path.name == "week02_b.ipynb":
            raise KeyboardInterrupt
        return read(path)

    monkeypatch.setattr(student, "without_outputs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        student.offer(root, root / "work")
    monkeypatch.setattr(student, "without_outputs", read)
    assert student.offer(root, root / "work") == ["new files: 1"]


def test_a_deleted_notebook_comes_back_fresh(student, root):
    work = root / "work"
    student.offer(root, work)
    (work / "week01_a.ipynb").unlink()
    assert student.offer(root, work) == ["new files: 1"]
    assert source(work / "week01_a.ipynb") == "1 + 1"
    assert len(json.loads((work / student.HANDED).read_text())) == 2


def test_the_course_s_own_folder_is_refused(student, root):
    with pytest.raises(SystemExit, match="the course's own folder"):
        student.main([str(root / "notebooks")], root)


def test_a_damaged_record_makes_no_copies_of_what_is_unchanged(student, root):
    work = root / "work"
    student.offer(root, work)
    (work / "project" / "train.py").write_text("mine")
    for damage in ("<<<<<<< HEAD", "[1]", '{"week01_a.ipynb": 3}', '{"week01_a.ipynb": ["x"]}'):
        (work / student.HANDED).write_text(damage)
        student.offer(root, work)
    assert not (work / "week01_a.new.ipynb").exists()
    assert (work / "project" / "train.py").read_text() == "mine"
    course(root, "week01_a", "1 + 2")
    student.offer(root, work)
    assert source(work / "week01_a.ipynb") == "1 + 2"


def test_a_damaged_notebook_of_the_course_stops_no_other(student, root):
    (root / "notebooks" / "week00.ipynb").write_text("<<<<<<< HEAD\n{}")
    lines = student.offer(root, root / "work")
    assert lines[0] == "new files: 2"
    assert lines[1].startswith("week00.ipynb is left out: ")
    assert (root / "work" / "week01_a.ipynb").exists()


def test_links_of_the_student_stay_and_lead_nowhere_else(student, root):
    work, elsewhere = root / "work", root / "elsewhere.ipynb"
    work.mkdir()
    (work / "week01_a.ipynb").symlink_to(elsewhere)
    (line,) = [line for line in student.offer(root, work) if "yours" in line]
    assert "week01_a.new.ipynb" in line
    assert not elsewhere.exists()
    assert (work / "week01_a.ipynb").is_symlink()


def test_other_ends_of_lines_are_a_change_of_the_student_s(student, root):
    work = root / "work"
    student.offer(root, work)
    mine = work / "week01_a.ipynb"
    mine.write_bytes(before := mine.read_bytes().replace(b"\n", b"\r\n"))
    course(root, "week01_a", "1 + 2")
    student.offer(root, work)
    assert mine.read_bytes() == before
    assert source(work / "week01_a.new.ipynb") == "1 + 2"


def test_a_folder_in_the_place_of_a_notebook(student, root):
    (root / "work" / "week01_a.ipynb").mkdir(parents=True)
    student.offer(root, root / "work")
    assert source(root / "work" / "week01_a.new.ipynb") == "1 + 1"


def test_half_a_file_is_never_left(student, root, monkeypatch):
    work = root / "work"
    student.offer(root, work)
    before = {name: (work / name).read_bytes() for name in names(work)}
    course(root, "week01_a", "1 + 2")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(student.os, "replace", full)
    (line,) = student.offer(root, work)
    assert "left out: [Errno 28]" in line
    assert {name: (work / name).read_bytes() for name in names(work)} == before


def test_a_folder_that_cannot_be_made(student, root):
    (root / "work").write_text("a file")
    with pytest.raises(SystemExit, match=f"cannot write to {root}/work: File exists"):
        student.main([], root)


@pytest.mark.parametrize("folder", ["work", "mine"])
def test_what_make_student_prints(student, root, capsys, folder):
    student.main([] if folder == "work" else [str(root / folder)], root)
    assert capsys.readouterr().out == (
        f"new files: 2\nYour notebooks are in {folder}/. To open them: make lab AT={folder}\n"
    )
    assert (root / folder / "week01_a.ipynb").exists()


def test_which_files_a_student_needs(student, root):
    """What notebooks link or run; nothing that an editor or Python has left behind."""
    folder = root / "notebooks"
    (folder / "project" / "__pycache__").mkdir()
    (folder / "data.json").mkdir()
    kept = ["a.csv", "b.json", "c.png", "d.yaml", "project/e.py"]
    left = ["rise.css", "notes.txt", "project/__pycache__/train.py"]
    for name in kept + left:
        (folder / name).write_text("{}")
    found = [p.relative_to(folder).as_posix() for p in student.course_files(root)]
    assert found == [*kept, "project/train.py", "week01_a.ipynb"]

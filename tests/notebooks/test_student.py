"""The folder for a student's own work: nothing that the student wrote is ever overwritten."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.conftest import ci

NEW = "week01_a.new.ipynb"


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


@pytest.fixture
def work(student, root):
    """A student's folder, made once."""
    assert student.offer(root, root / "work") == ["new files: 2"]
    return root / "work"


def course(root, name, source, output="2\n"):
    """A notebook of the course, with an output, and a note for the speaker."""
    cell = new_code_cell(source, execution_count=3, id="one")
    cell.outputs = [new_output("stream", text=output)]
    notes = new_markdown_cell("In class. Ask.", id="note")
    notes.metadata.slideshow = {"slide_type": "notes"}
    nb = new_notebook(cells=[cell, notes])
    nb.metadata.executed = {"sources": "abc"}
    nbformat.write(nb, root / "notebooks" / f"{name}.ipynb")


def source(path):
    return nbformat.read(path, as_version=4).cells[0].source


def files(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def test_notebooks_without_outputs_and_the_scripts_beside_them(student, root, work):
    before = files(work)
    assert set(before) == {student.HANDED, "project/train.py", "week01_a.ipynb"}
    nb = nbformat.read(work / "week01_a.ipynb", as_version=4)
    assert [cell.id for cell in nb.cells] == ["one"]
    assert (nb.cells[0].outputs, nb.cells[0].execution_count) == ([], None)
    assert "executed" not in nb.metadata
    assert nbformat.read(root / "notebooks" / "week01_a.ipynb", as_version=4).cells[0].outputs
    # neither a second time nor a new output alone changes anything
    course(root, "week01_a", "1 + 1", "3\n")
    assert student.offer(root, work) == []
    assert files(work) == before


def test_what_the_student_wrote_stays_and_the_new_version_comes_beside(student, root, work):
    mine = work / "week01_a.ipynb"
    given = mine.read_text()
    mine.write_text(given.replace("1 + 1", "my answer"))
    course(root, "week01_a", "1 + 2")
    (line,) = student.offer(root, work)
    assert NEW in line
    assert (source(mine), source(work / NEW)) == ("my answer", "1 + 2")
    assert student.offer(root, work) == []  # offered once
    course(root, "week01_a", "1 + 3")  # and once more, beside both
    student.offer(root, work)
    assert (source(mine), source(work / NEW)) == ("my answer", "1 + 2")
    assert source(work / "week01_a.new-2.ipynb") == "1 + 3"
    mine.write_text(given)  # whoever goes back to what was given follows the course again
    course(root, "week01_a", "1 + 4")
    (line,) = student.offer(root, work)
    assert "you had not changed it" in line
    assert source(mine) == "1 + 4"


def test_an_unchanged_file_follows_the_course(student, root, work):
    course(root, "week01_a", "1 + 2")
    course(root, "week02_b", "new week")
    first, second = student.offer(root, work)
    assert first == "new files: 1"
    assert "you had not changed it" in second
    assert source(work / "week01_a.ipynb") == "1 + 2"
    assert source(work / "week02_b.ipynb") == "new week"
    (work / "week01_a.ipynb").unlink()  # a deleted notebook comes back
    assert student.offer(root, work) == ["new files: 1"]
    assert source(work / "week01_a.ipynb") == "1 + 2"


def ends(mine):
    mine.write_bytes(mine.read_bytes().replace(b"\n", b"\r\n"))  # other ends of lines


def other(mine):
    nbformat.write(new_notebook(cells=[new_code_cell("mine")]), mine)


def link(mine):
    mine.unlink()
    mine.symlink_to(mine.parents[1] / "elsewhere.ipynb")


def folder(mine):
    mine.unlink()
    mine.mkdir()


@pytest.mark.parametrize("change", [ends, other, link, folder])
@pytest.mark.parametrize("known", [True, False], ids=["handed out", "of the student's own"])
def test_whatever_has_the_name_of_a_notebook_stays(student, root, work, change, known):
    mine = work / "week01_a.ipynb"
    change(mine)
    if not known:
        (work / student.HANDED).unlink()
    before = mine.read_bytes() if mine.is_file() else mine.is_symlink()
    course(root, "week01_a", "1 + 2")
    student.offer(root, work)
    assert (mine.read_bytes() if mine.is_file() else mine.is_symlink()) == before
    assert source(work / NEW) == "1 + 2"
    assert not (root / "elsewhere.ipynb").exists()


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


def test_a_damaged_record_makes_no_copies_of_what_is_unchanged(student, root, work):
    (work / "project" / "train.py").write_text("mine")
    for damage in ("<<<<<<< HEAD", "[1]", '{"week01_a.ipynb": 3}', '{"week01_a.ipynb": ["x"]}'):
        (work / student.HANDED).write_text(damage)
        student.offer(root, work)
    assert not (work / NEW).exists()
    assert (work / "project" / "train.py").read_text() == "mine"
    assert len(json.loads((work / student.HANDED).read_text())) == 2
    course(root, "week01_a", "1 + 2")
    student.offer(root, work)
    assert source(work / "week01_a.ipynb") == "1 + 2"


def test_a_damaged_notebook_of_the_course_stops_no_other(student, root):
    (root / "notebooks" / "week00.ipynb").write_text("<<<<<<< HEAD\n{}")
    first, second = student.offer(root, root / "work")
    assert first == "new files: 2"
    assert second.startswith("week00.ipynb is left out: ")
    assert (root / "work" / "week01_a.ipynb").exists()


def test_half_a_file_is_never_left(student, root, work, monkeypatch):
    before = files(work)
    course(root, "week01_a", "1 + 2")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(student.os, "replace", full)
    (line,) = student.offer(root, work)
    assert "left out: [Errno 28]" in line
    assert files(work) == before


@pytest.mark.parametrize("folder", ["work", "mine"])
def test_what_make_student_prints(student, root, capsys, folder):
    student.main([] if folder == "work" else [str(root / folder)], root)
    assert capsys.readouterr().out == (
        f"new files: 2\nYour notebooks are in {folder}/. To open them: make lab AT={folder}\n"
    )
    assert (root / folder / "week01_a.ipynb").exists()


def test_folders_that_are_refused(student, root):
    with pytest.raises(SystemExit, match="the course's own folder"):
        student.main([str(root / "notebooks")], root)
    (root / "work").write_text("a file")
    with pytest.raises(SystemExit, match=f"cannot write to {root}/work: File exists"):
        student.main([], root)


def test_which_files_a_student_needs(student, root):
    """What notebooks link or run; nothing that an editor or Python has left behind."""
    folder = root / "notebooks"
    (folder / "project" / "__pycache__").mkdir()
    (folder / "data.json").mkdir()
    (folder / "solutions").mkdir()
    (folder / "solutions" / "week01.py").write_text("")
    kept = ["a.csv", "b.json", "c.png", "d.yaml", "project/e.py", "project/f.sbatch"]
    for name in [*kept, "rise.css", "notes.txt", "project/__pycache__/train.py"]:
        (folder / name).write_text("{}")
    found = [p.relative_to(folder).as_posix() for p in student.course_files(root)]
    assert found == [*kept, "project/train.py", "week01_a.ipynb"]
    student.main(["--solutions", str(root / "work")], root)
    assert (root / "work" / "solutions" / "week01.py").exists()

"""What an instructor hands out: no outputs, solutions or notes, nothing that git does not know."""

import json
import subprocess
import zipfile

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.conftest import ROOT, ci
from tests.test_readme import links


@pytest.fixture(scope="module")
def handout():
    return ci("handout")


@pytest.fixture
def root(tmp_path):
    """The course, in a folder of a larger clone."""
    root = tmp_path / "course"
    files = {
        "README.md": "### Students\n\n### Instructors\n\nc\n\n### Developers\n\nd\n\n## Weeks\n",
        "helpers/a.py": "a = 1",
        "helpers/check/grading/grade.py": "",
        "notebooks/solutions/week01.py": "def solve(): ...",
        "notebooks/mpi/train.py": "train",
        "notebooks/guide/README.md": "for instructors",
        "notebooks/guide/week01.md": "answers",
        "notebooks/guide/faults.md": "messages",
        "notebooks/week01_a.ipynb": notebook("1 + 1"),
        "tests/test_a.py": "",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    me = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *me, "commit", "-qm", "course"], cwd=tmp_path, check=True)
    (root / "helpers" / "a.py").chmod(0o755)
    (root / "grades.csv").write_text("the instructor's own")
    return root


def notebook(source):
    cell = new_code_cell(source, outputs=[new_output("stream", text="2")])
    notes = new_markdown_cell("In class.", metadata={"slideshow": {"slide_type": "notes"}})
    return nbformat.writes(new_notebook(cells=[cell, notes]))


def test_what_is_handed_out(handout, root, capsys):
    handout.main(root)
    folder = root / "build" / "handout"
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert names == {
        "README.md",
        "helpers/a.py",
        "notebooks/guide/faults.md",
        "notebooks/mpi/train.py",
        "notebooks/week01_a.ipynb",
    }
    assert (folder / "README.md").read_text() == "### Students\n\n## Weeks\n"
    (cell,) = json.loads((folder / "notebooks/week01_a.ipynb").read_text())["cells"]
    assert cell["outputs"] == []
    with zipfile.ZipFile(root / "build" / "handout.zip") as archive:
        assert {n for n in archive.namelist() if not n.endswith("/")} == names
    assert capsys.readouterr().out == "5 files in build/handout/ and handout.zip\n"
    assert (folder / "helpers" / "a.py").stat().st_mode & 0o777 == 0o755  # a program stays one


def test_the_second_handout_has_nothing_of_the_first(handout, root):
    handout.main(root)
    (root / "notebooks" / "week01_a.ipynb").unlink()
    (root / "build" / "handout" / "own.txt").write_text("a file of the instructor")
    handout.main(root)
    assert not (root / "build/handout/notebooks/week01_a.ipynb").exists()
    assert not (root / "build/handout/own.txt").exists()


def test_the_instructor_s_own_answers_are_named(handout, root, capsys):
    (root / "notebooks" / "week01_a.ipynb").write_text(notebook("the answer"))
    (root / "notebooks" / "solutions" / "week01.py").write_text("a new solution")
    handout.main(root)
    said = capsys.readouterr().out
    assert said.startswith("notebooks/week01_a.ipynb is not as it was committed: does it hold")
    assert "solutions/week01.py" not in said


def test_a_notebook_with_a_merge_conflict_is_named(handout, root):
    (root / "notebooks" / "week01_a.ipynb").write_text("<<<<<<< HEAD\n{}\n=======\n")
    with pytest.raises(SystemExit, match=r"nothing was handed out: notebooks/week01_a.ipynb"):
        handout.main(root)


def test_where_git_knows_nothing(handout, root, tmp_path, monkeypatch):
    copy = root / "build" / "copy"
    copy.mkdir(parents=True)
    with pytest.raises(SystemExit, match="git knows no file here"):
        handout.main(copy)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"git does not list .*No such file.*run this in a clone"):
        handout.main(tmp_path)


def test_the_course_s_own_hand_out(handout, tmp_path):
    """No solution is left, and no page names a file that is left out."""
    written = handout.hand_out(ROOT, tmp_path / "out")
    assert not [p for p in written if "solutions" in p.as_posix()]
    assert len(list((tmp_path / "out/notebooks").glob("week*.ipynb"))) >= 19
    folder = tmp_path / "out" / "notebooks"
    pages = [
        page for page in written if page.suffix in (".md", ".ipynb") and folder in page.parents
    ]
    pages.append(tmp_path / "out" / "README.md")
    # code has brackets like those of a link, but hardly with the name of a file in them
    named = {(page, link.partition("#")[0]) for page in pages for link in links(page)}
    files = [(page, link) for page, link in named if "." in link and "://" not in link]
    assert [pair for pair in files if not (pair[0].parent / pair[1]).exists()] == []
    assert len(files) > 50

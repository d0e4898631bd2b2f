"""START.ipynb: the notebooks in order, what is solved, what is next; the student's text stays."""

import json
import shutil
import subprocess

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.browser.lab import command
from tests.conftest import ROOT, ci


@pytest.fixture(scope="module")
def start():
    return ci("start")


@pytest.fixture
def root(tmp_path):
    """A course of two weeks and a project, and a student's folder."""
    (tmp_path / "notebooks" / "project").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".handed.json").write_text("{}")
    (tmp_path / "README.md").write_text("")
    notebook(tmp_path, "week01_a", "Week 1, first part · A", "mean", "ring")
    notebook(tmp_path, "week01b_b", "Week 1, second part · B", "tree")
    notebook(tmp_path, "week02_c", "Week 2 · C", "fit")
    notebook(tmp_path, "project/p", "Project · P")
    return tmp_path


def notebook(root, name, title, *exercises):
    opening = f"# {title}\n\n**Why {title[-1]}?**\n\n*About 50 minutes, and 10 more for exercises.*"
    cells = [new_markdown_cell(opening), new_code_cell("def none(): ...")]
    for exercise in exercises:
        source = f"def {exercise}(x):\n    raise NotImplementedError"
        cells.append(new_code_cell(source, metadata={"tags": ["exercise"]}))
    nbformat.write(new_notebook(cells=cells), root / "notebooks" / f"{name}.ipynb")


def read(root):
    return nbformat.read(root / "work" / "START.ipynb", as_version=4)


@pytest.mark.parametrize(
    ("solved", "following"),
    [
        (
            [],
            "**Next: [Week 1, first part · A](week01_a.ipynb)**: 50 minutes, and exercises (2",
        ),
        (["mean"], "(week01_a.ipynb)**: 50 minutes, and exercises (1 left)."),
        (["mean", "ring"], "(week01b_b.ipynb)**: 50 minutes, and exercises (1 left)."),
        (["tree"], "(week02_c.ipynb)**"),  # a skipped notebook is not asked for again
        (["fit"], "The exercises marked · are left, and the project."),
    ],
)
def test_what_is_next_and_what_is_solved(start, root, solved, following):
    (root / "work" / ".progress.json").write_text(json.dumps(dict.fromkeys(solved, "2026-01-31")))
    start.main(root / "work", root)
    opening, table, _, code = read(root).cells
    assert following in opening.source
    assert "[what the course is](../README.md)" in opening.source
    assert "faults.md" not in opening.source  # it is not there
    rows = table.source.splitlines()[2:]
    assert [row.split("](")[1].split(")")[0] for row in rows] == [
        "week01_a.ipynb", "week01b_b.ipynb", "week02_c.ipynb", "project/p.ipynb"
    ]  # fmt: skip
    mark = "✓" if "mean" in solved else "·"
    assert rows[0].startswith("| [Week 1, first part · A](week01_a.ipynb)<br>Why A? | 50 | ")
    assert f"{mark}&nbsp;`mean`" in rows[0]
    assert "check.progress()" in code.source
    nbformat.validate(read(root))


def test_it_follows_the_student_until_its_text_is_changed(start, root):
    start.main(root / "work", root)
    nb = read(root)
    nb.cells[3].outputs = [nbformat.v4.new_output("stream", text="week 1: 0 of 2")]
    nb.metadata.language_info = {"name": "python"}  # as JupyterLab saves it
    nbformat.write(nb, root / "work" / "START.ipynb")
    (root / "work" / ".progress.json").write_text('{"mean": "2026-01-31"}')
    start.main(root / "work", root)
    assert "✓&nbsp;`mean`" in read(root).cells[1].source
    nb = read(root)
    nb.cells[2].source = "my notes"
    nbformat.write(nb, root / "work" / "START.ipynb")
    (root / "work" / ".progress.json").unlink()
    start.main(root / "work", root)
    assert read(root).cells[2].source == "my notes"
    assert "✓&nbsp;`mean`" in read(root).cells[1].source


@pytest.mark.parametrize("damage", ["progress", "page", "course", "not a student's"])
def test_damage_stops_nothing(start, root, capsys, damage):
    work, page = root / "work", root / "work" / "START.ipynb"
    if damage == "progress":
        (work / ".progress.json").write_text("[")
    elif damage == "page":
        page.write_text("<<<<<<< HEAD")
    elif damage == "course":
        (root / "notebooks" / "week00.ipynb").write_text("<<<<<<< HEAD")
    else:
        (work / ".handed.json").unlink()
    start.main(work, root)
    assert page.exists() == (damage in ("progress", "page"))
    assert (page.read_text() == "<<<<<<< HEAD") if damage == "page" else True
    assert ("is not up to date" in capsys.readouterr().out) == (damage == "course")


def test_every_notebook_of_the_course_is_named(start):
    found = {path.stem: start.about(path) for path in start.find(ROOT)}
    assert [name for name, (title, *rest, _) in found.items() if not (title and all(rest))] == []
    assert [name for name, about in found.items() if not about[-1]] == [
        "project_distributed_training"
    ]


@pytest.mark.parametrize(("there", "opened"), [(True, "/START.ipynb"), (False, "")])
def test_make_lab_opens_it(tmp_path, there, opened):
    shutil.copy2(ROOT / "Makefile", tmp_path)
    if there:
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "START.ipynb").touch()
    line = f"echo {command(tmp_path, '--port 1', at='work')}"
    said = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert said.stdout.endswith(f"default_url=/lab/tree/work{opened} --port 1\n")

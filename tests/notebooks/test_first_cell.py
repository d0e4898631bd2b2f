"""The first code cell of each notebook finds the package, however the notebook is opened."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.test_format import NOTEBOOKS

ROOT = Path(__file__).resolve().parents[2]
SHOW = "\nimport helpers; print(helpers.__file__)"
# Each process tells which package it imports: this one, ranks, and programs that both start.
PROCESSES = """
import json, subprocess, helpers
from helpers import launch

def look(worker):
    import helpers
    program = [sys.executable, "-c", "import helpers; print(helpers.__file__)"]
    done = subprocess.run(program, cwd="/", capture_output=True, text=True, check=True)
    return [helpers.__file__, done.stdout.strip()]

runs = [launch(look, workers=2), launch(look, workers=1, start="spawn")]
print(json.dumps([found for run in [*runs, [look(None)]] for one in run for found in one]))
"""


def first_cell(path: Path):
    return next(c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")


def package(folder: Path, inside: str = "runtime") -> Path:
    """A package `helpers` in this folder; without `runtime`, another project's."""
    place = folder / "helpers"
    (place / inside).mkdir(parents=True)
    (place / "__init__.py").touch()
    return place / "__init__.py"


def opened(folder: Path, *path: Path, then: str = SHOW):
    """Run the cell in this folder, on a Python that has the folders of `path` and no library."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = f"import sys; sys.path += {list(map(str, path))}\n"
    source = begin + first_cell(NOTEBOOKS[0]).source + then
    command = [sys.executable, "-S", "-E", "-c", source]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def finds(folder: Path, *path: Path) -> Path:
    done = opened(folder, *path)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_begins_with_the_same_cell(path):
    cell = first_cell(path)
    assert cell.source == first_cell(NOTEBOOKS[0]).source
    assert cell.id == "find-helpers"
    assert cell.metadata == {"slideshow": {"slide_type": "skip"}}


@pytest.mark.parametrize("below", ["notebooks", "notebooks/project", "work/mine"])
def test_a_notebook_in_a_clone_finds_its_own_package(tmp_path, below):
    own = package(tmp_path / "clone")
    package(tmp_path / "clone" / below / "another")
    package(tmp_path)
    other = package(tmp_path / "installed").parents[1]
    assert finds(tmp_path / "clone" / below, other) == own


def test_a_notebook_beside_a_clone_finds_the_package_in_it(tmp_path):
    wrong = package(tmp_path / "content" / "another", inside="other").parents[1]
    (tmp_path / "content" / "file").touch()
    own = package(tmp_path / "content" / "clone")
    assert finds(tmp_path / "content", wrong) == own


def test_an_installed_package_is_found(tmp_path):
    wrong = package(tmp_path / "wrong", inside="other").parents[1]
    right = package(tmp_path / "right")
    assert finds(tmp_path / "alone", wrong, right.parents[1]) == right


@pytest.mark.parametrize("wrong", [False, True], ids=["nothing", "another project's package"])
def test_without_the_package_one_line_says_what_to_do(tmp_path, wrong):
    path = [package(tmp_path / "wrong", inside="other").parents[1]] if wrong else []
    done = opened(tmp_path / "alone", *path)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    for part in ("`helpers` is not found", "clone the course", "pip install", "PyPI"):
        assert part in line


def test_ranks_and_programs_find_the_package_of_the_notebook(tmp_path):
    """The libraries are installed, and the course is not: no other folder is on the path."""
    clone = tmp_path / "content" / "clone"
    clone.mkdir(parents=True)
    (clone / "helpers").symlink_to(ROOT / "helpers")
    libraries = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    done = opened(tmp_path / "content", *libraries, then=PROCESSES)
    assert done.returncode == 0, done.stderr
    places = json.loads(done.stdout.splitlines()[-1])
    assert places == [str(clone / "helpers" / "__init__.py")] * 8

"""Notebooks and the package read nothing outside the package and `notebooks/`.

A notebook reads the course's files by `course_file`, which also finds them if the notebook is alone
in its folder. Pictures and tables that a text links are for the eye only.
"""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.cells import called
from tests.notebooks.spelled import parse
from tests.notebooks.test_format import NOTEBOOKS

ROOT = Path(__file__).resolve().parents[2]
OURS = {"helpers", "notebooks"}
OUTSIDE = {path.name for path in ROOT.iterdir()} - OURS | {"figures", "tests", "build", "work"}


def leaves(text: str) -> str:
    """The path in a text that leads out of a notebook's folder, or to another one of this clone."""
    for word in re.findall(r"[^\s'\"=]+", text):
        first, *rest = word.split("/")
        if ".." in (first, *rest) or (rest and first in OUTSIDE):
            return word
    return text if text in OUTSIDE else ""


def texts(tree: ast.AST):
    """(line, text) of every string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def imported(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def reads(tree: ast.AST, folder: Path) -> list[str]:
    """What a cell of a notebook in this folder reads, as 'line: reason'."""
    found = []
    for line, name in imported(tree):
        if name.split(".")[0] in OUTSIDE:
            found.append(f"{line}: imports {name}, which is not in the package")
    by_name = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) == "course_file":
            [(line, name)] = list(texts(node.args[0]))[:1]
            by_name.add((line, name))
            if not (ROOT / "notebooks" / name).exists():
                found.append(f"{line}: notebooks/{name} does not exist")
    for line, text in texts(tree):
        looks = ("/" in text or "." in text.strip(".")) and len(text) < 200
        if word := leaves(text):
            found.append(f"{line}: reads {word}")
        elif looks and (line, text) not in by_name and (folder / text).exists():
            found.append(f"{line}: reads {text} without course_file")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_reads_only_the_package_and_course_files(path):
    cells = nbformat.read(path, as_version=4).cells
    found = [
        f"{cell.id}:{reason}"
        for cell in cells
        if cell.cell_type == "code"
        for reason in reads(parse(cell.source), path.parent)
    ]
    assert found == []


def test_the_package_names_no_folder_beside_it():
    found = []
    for path in sorted((ROOT / "helpers").rglob("*.py")):
        name = path.relative_to(ROOT / "helpers").as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        found += [f"{name}:{line}" for line, module in imported(tree) if beside(module, ".")]
        found += [f"{name}:{line}" for line, text in texts(tree) if beside(text, "/")]
    assert found == []


def beside(text: str, between: str) -> bool:
    """Is it a path or module in a folder beside the package? `tests` alone is in each Python."""
    first, *rest = text.split(between)
    return first in OUTSIDE and (bool(rest) or first == "figures")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("pd.read_csv('../figures/adam.csv')", "reads ../figures/adam.csv"),
        ("open('..')", "reads .."),
        ("Path('figures') / 'adam.csv'", "reads figures"),
        ("!cat ../README.md", "reads ../README.md"),
        ("!python tests/bench/adam.py", "reads tests/bench/adam.py"),
        ("%run ../figures/draw.py", "reads ../figures/draw.py"),
        ("open(f'../figures/{name}.md')", "reads ../figures/"),
        ("['--path=../x']", "reads ../x"),
        ("from tests.bench import adam", "imports tests.bench"),
        ("import figures.draw", "imports figures.draw"),
        ("run('accelerate/train_gpt.py')", "accelerate/train_gpt.py without course_file"),
        ("run(f'mpi/{name}')", "mpi/ without course_file"),
        ("course_file('mpi/gone.py')", "does not exist"),
    ],
)
def test_what_lies_elsewhere_is_found(source, reason):
    [found] = reads(parse(source), ROOT / "notebooks")
    assert reason in found


@pytest.mark.parametrize(
    "source",
    [
        "course_file('accelerate/train_gpt.py')",
        "course_file(f'mpi/{name}')",
        "print('the figures of 1/2 of the tests ... are in ./')",
        "(folder / 'mine.csv').write_text('1..2')",
        "'helpers/runtime'",
        "from helpers.plots import style",
    ],
)
def test_what_the_course_may_read_is_not(source):
    assert reads(parse(source), ROOT / "notebooks") == []


def test_what_the_package_may_not_name():
    assert beside("figures/adam.csv", "/")
    assert beside("figures", "/")
    assert beside("tests.bench", ".")
    assert not beside("tests", "/")
    assert not beside("helpers/scaling/sweep.csv", "/")

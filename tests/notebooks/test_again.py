"""After Run All, a student predicts and runs an experiment again: it reads what it read before."""

import ast
from dis import get_instructions
from types import CodeType

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.notebooks.spelled import parse
from tests.notebooks.test_format import NOTEBOOKS

ANSWERS = {"side_by_side", "reveal"}


def inner(code: CodeType) -> dict[str, CodeType]:
    """The functions and classes that a cell or a function defines."""
    return {part.co_name: part for part in code.co_consts if isinstance(part, CodeType)}


def used(code: CodeType) -> tuple[set[str], set[str]]:
    """The names that a cell or a function reads from the notebook, and those that it binds."""
    reads, binds = set(), set()
    for step in get_instructions(code):
        if step.opname in ("LOAD_NAME", "LOAD_GLOBAL") and step.argval not in binds:
            reads.add(step.argval)
        elif step.opname == "STORE_NAME":
            binds.add(step.argval)
    called = set().union(*(used(part)[0] for part in inner(code).values()))
    return reads | called - binds, binds


def imported(tree: ast.AST) -> set[str]:
    nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
    return {(a.asname or a.name).split(".")[0] for node in nodes for a in node.names}


def misled(nb) -> list[str]:
    """The names that a cell reads from a cell above, and that it or a cell below binds anew.

    Cells without a text between them run together. A cell with an answer also runs alone.
    """
    numbers = [n for n, cell in enumerate(nb.cells) if cell.cell_type == "code"]
    trees = [parse(nb.cells[n].source) for n in numbers]
    codes = [compile(tree, "cell", "exec") for tree in trees]
    names, imports = [used(code) for code in codes], [imported(tree) for tree in trees]
    found = []
    for i, number in enumerate(numbers):
        todo, seen = set(names[i][0]), set()
        alone = todo & ANSWERS
        while todo:
            seen.add(name := todo.pop())
            above = [j for j in range(i) if name in names[j][1]]
            if not above:
                continue
            made = above[-1]
            if function := inner(codes[made]).get(name):  # what it reads is read, too
                todo |= used(function)[0] - seen - names[i][1]
            between = nb.cells[numbers[made] : number]
            if not alone and all(cell.cell_type == "code" for cell in between):
                continue
            for j in range(i, len(codes)):
                if name in names[j][1] - (imports[made] & imports[j]):
                    cells = f"{name} of {numbers[made]}, bound anew by {numbers[j]}"
                    found.append(f"cell {number}: {cells}")
                    break
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_runs_again_reads_what_it_read_before(path):
    assert misled(nbformat.read(path, as_version=4)) == []


def notebook(*sources):
    """Code cells, and a text cell for each empty source."""
    return new_notebook(cells=[new_code_cell(s) if s else new_markdown_cell() for s in sources])


@pytest.mark.parametrize(
    "sources",
    [
        ("size = 4", "", "print(size)", "size = 5"),
        ("size = 4", "side_by_side(measured=size)", "size = 5"),  # without a text between
        ("size = 4", "", "size += 1"),
        ("size = 4", "", "print([size for _ in range(3)])", "for size in (1, 2):\n    pass"),
        ("def size():\n    pass", "", "size()", "with open('x') as (size, _):\n    pass"),
        ("from math import pi as size", "", "def f():\n    return size", "def size():\n    pass"),
        ("size = 4\ndef f():\n    return size", "", "f()", "import size"),
        ("size = 4", "def g():\n    return size\ndef f():\n    return g()", "", "f()", "size = 5"),
    ],
)
def test_a_name_that_a_later_cell_binds_anew_is_found(sources):
    assert any(": size of 0, bound anew by" in line for line in misled(notebook(*sources)))


@pytest.mark.parametrize(
    "sources",
    [
        ("size = 4", "print(size)", "", "size = 5"),
        ("size = 4", "", "size = 5\nprint(size)", "size = 6"),
        ("size = 4", "", "print(size)", "def f():\n    size = 5\n[size for size in (1, 2)]"),
        ("size = 4", "", "def f(size):\n    return size\nx.size = 3", "size = 5"),
        ("import size", "", "size", "import size"),
        ("!ls", "", "%time f(size)", "size = 5"),
    ],
)
def test_what_a_later_cell_leaves_alone_is_not(sources):
    assert misled(notebook(*sources)) == []

"""Which parts of a notebook are definitions, and which notebooks can be read."""

import json

import pytest

from helpers.check.grading.definitions import NotANotebook, code_of, defined, definitions

CELL = """%matplotlib inline
import math
from torch import nn
SIZE = 4
LIMITS: tuple = (1, -2)
double = lambda x: 2 * x
weights = nn.Linear(1000, 1000)
print("trains for an hour")

@staticmethod
def solve(x):
    !ls
    return x

class Own:
    pass

for i in range(3):
    weights = i
"""


def test_definitions_alone_are_kept():
    (found,) = [definitions([CELL.replace("    !ls\n", "")])]
    assert found == [
        "import math",
        "from torch import nn",
        "SIZE = 4",
        "LIMITS: tuple = (1, -2)",
        "double = lambda x: 2 * x",
        "@staticmethod\ndef solve(x):\n    return x",
        "class Own:\n    pass",
    ]


def test_a_line_for_the_shell_within_a_function_is_left_out():
    assert "@staticmethod\ndef solve(x):\n\n    return x" in definitions([CELL])


def test_a_cell_with_a_syntax_error_does_not_spoil_the_others():
    assert definitions(["def broken(:", "def fine(): pass", "x = \x00", "(" * 5000]) == [
        "def fine(): pass"
    ]


def test_names_of_functions():
    assert defined(
        ["def a(): pass\nb = lambda: 1\nc = 3\nclass D: pass", "async def e(): pass"]
    ) == {
        "a",
        "b",
    }


def notebook(tmp_path, content):
    path = tmp_path / "n.ipynb"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_sources_as_text_or_lines(tmp_path):
    cells = [
        {"cell_type": "code", "source": "a = 1\nb = 2"},
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": ["c = 3\n", "d = 4"]},
    ]
    assert code_of(notebook(tmp_path, {"cells": cells})) == ["a = 1\nb = 2", "c = 3\nd = 4"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cells": 3}', {"cells": [{}]}, "[" * 100_000])
def test_what_is_no_notebook(tmp_path, content):
    with pytest.raises(NotANotebook):
        code_of(notebook(tmp_path, content))


def test_a_notebook_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr("helpers.check.grading.definitions.LARGEST", 10)
    with pytest.raises(NotANotebook, match="more than 10 bytes"):
        code_of(notebook(tmp_path, {"cells": []}))

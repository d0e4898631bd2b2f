"""Which parts of a notebook are definitions."""

import json

import pytest

from helpers.check.grading.definitions import NotANotebook, code_of, definitions

CELL = """%matplotlib inline
import math
from torch import nn
SIZE = 4
LIMITS: tuple = (1, -2)
KB = 2**10 if SIZE else {"a": [SIZE]}
DTYPE = torch.float64
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
    assert definitions([CELL]).sources == [
        "import math",
        "from torch import nn",
        "SIZE = 4",
        "LIMITS: tuple = (1, -2)",
        'KB = 2**10 if SIZE else {"a": [SIZE]}',
        "DTYPE = torch.float64",
        "double = lambda x: 2 * x",
        "@staticmethod\ndef solve(x):\n    pass\n    return x",
        "class Own:\n    pass",
    ]


def test_a_line_of_an_expression_may_look_like_a_line_for_the_shell():
    cell = "def f(a, b):\n    return (a\n        % b\n        != 3)"
    assert definitions([cell]).sources == [cell]


def test_lines_count_as_python_counts_them():
    cell = "x = 'a\x0cb'\r\ndef f():\r    return 1\r\ny = 3"
    assert definitions([cell]).sources == ["x = 'a\x0cb'", "def f():\n    return 1", "y = 3"]


def test_a_cell_that_cannot_be_read_does_not_spoil_the_others():
    bad = ["x = \x00", "(" * 5000, "%%bash\nrm x y"]
    found = definitions(["def broken(:", "def fine(): pass", *bad])
    assert found.sources == ["def fine(): pass"]
    assert list(found.broken) == ["broken"]
    assert "SyntaxError" in found.broken["broken"]


def test_names_of_functions():
    some = "def a(): pass\nb = lambda: 1\nc = 3\nclass D: pass\nasync def e(): pass"
    names = definitions([some, "f = g = a\nh = a.b"]).functions
    assert names == ["a", "b", "D", "e", "f", "g", "h"]
    assert definitions(["from x import solve\ni: int = 3\nj = f()"]).functions == []
    assert definitions(["c: object = a"]).functions == ["c"]


NEEDS = """
from __future__ import annotations
from math import *
import torch.nn as nn, os.path
import matplotlib
SIZE = KB = 4
def double(x, size=SIZE): return 2 * x
def double(x): return os.path.join(x, x)
class Slow(nn.Module): pass
@double
def solve(x): return [double(one) for one in x]
"""


def test_what_a_function_needs():
    found = definitions([NEEDS])
    lines = NEEDS.strip().split("\n")
    assert found.needed_by("solve") == [
        *lines[:3], *lines[4:7], "\n".join(lines[8:]),
    ]  # fmt: skip
    assert found.needed_by("Slow") == [*lines[:3], lines[7]]


def test_sources_as_text_or_lines():
    cells = [
        {"cell_type": "code", "source": "a = 1\nb = 2"},
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": ["c = 3\n", "d = 4"]},
        {"cell_type": "code", "source": "e = '\ud800'"},  # half a character
    ]
    assert code_of(json.dumps({"cells": cells})) == ["a = 1\nb = 2", "c = 3\nd = 4", "e = '?'"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"cells": 3}', '{"cells": [{}]}', "[" * 100_000, b"\xff\xfe\x00"]
)
def test_what_is_no_notebook(content):
    with pytest.raises(NotANotebook):
        code_of(content)

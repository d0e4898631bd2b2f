"""Which parts of a notebook are definitions."""

import json
import subprocess
import sys

import pytest

from helpers.check.grading.definitions import (
    COURSE,
    NotANotebook,
    Notebook,
    code_of,
    definitions,
)

pytestmark = pytest.mark.timeout(100)  # a search without an end is a mistake, too

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
    assert found.broken["broken"].startswith("its cell cannot be read: SyntaxError: ")
    cell = "def one(:\n    def inner(): pass\nclass Two: pass\nasync  def three(): pass"
    assert list(definitions([cell]).broken) == ["one", "Two", "three"]
    assert "SyntaxError" in found.broken["broken"]


def test_names_of_functions():
    some = "def a(): pass\nb = lambda: 1\nc = 3\nclass D: pass\nasync def e(): pass"
    names = definitions([some, "f = g = a\nh = a.b"]).functions
    assert names == ["a", "b", "D", "e", "f", "g", "h"]
    assert definitions(["from x import solve\ni: int = 3\nj = f()"]).functions == []
    assert definitions(["c: object = a"]).functions == ["c"]


def test_lines_for_ipython_leave_the_others_as_they_are():
    cell = """%%time
out = !ls %s
a, b = %timeit -o f()
    %time x
def rest(a, b):
    !echo
    return a % b if a != b else "%d!" % a"""
    found = definitions([cell.replace("    %time", "%time")])
    assert found.broken == {}
    assert found.sources == ['def rest(a, b):\n    pass\n    return a % b if a != b else "%d!" % a']
    assert definitions(["N = 5\nM = N % 3\n%time"]).sources == ["N = 5", "M = N % 3"]
    indented = "if True:\n    %time\n    N = 3\ndef f(): return N"
    assert definitions([indented]).sources == ["def f(): return N"]


def test_a_value_that_no_call_makes():
    kept = [
        "A = {1, 2}", "B = A[1:2, ::-1]", "C = not A and 1 < 2 <= 3", "D = [*A, {'x': ~1}]",
        "E = F = -1", "G, H = 1, 'x'", "I = A.b.c if A else None", "J = 'a' 'b'",
        "K: int = 3", "L = lambda: open('x')", "M[0] = 3",
    ]  # fmt: skip
    left = [
        "N = f()", "O = [x for x in A]", "P = f'{x}'", "Q = (R := 1)", "S = {1: f()}",
        "T: int", "U += 1", "V", "f()", "del W", "with A: pass", "try: X = 1\nfinally: pass",
        "Y = (f() for _ in A)", "Z = A[f():]",
    ]  # fmt: skip
    assert definitions(["\n".join(kept + left)]).sources == kept


def test_names_that_are_bound_and_used():
    found = definitions(["A, (B, *C) = D = E\nimport a.b, c.d as e\nfrom f import g as h, i"])
    assert [set(names) for names in found.binds] == [set("ABCD"), {"a", "e"}, {"h", "i"}]
    assert found.uses == [list("ABCDE"), [], []]
    found = definitions(["def f(x: A = B) -> C:\n    return E.g[h]", "@D\nclass F(G): H = I"])
    assert found.uses == [["A", "B", "C", "E", "h"], ["D", "G", "H", "I"]]


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
    with pytest.raises(NotANotebook, match=r"^the file is no notebook: \w+$"):
        code_of(content)


PROGRAM = """
import json, resource, sys
from helpers.check.grading import definitions
definitions.main()
kinds = resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE
json.dump([resource.getrlimit(kind) for kind in kinds], sys.stderr)
"""


@pytest.mark.parametrize("content", [b"{", json.dumps({"cells": []}).encode()])
def test_the_program_has_limits_and_writes_what_it_finds(content):
    """A text of a few bytes may need all of a machine's memory, or an hour."""
    line = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(line, input=content, capture_output=True, cwd=COURSE)
    assert json.loads(done.stderr) == [[4 << 30] * 2, [60] * 2, [0] * 2]
    found = json.loads(done.stdout)
    if content == b"{":
        assert found == {"error": "the file is no notebook: JSONDecodeError"}
    else:
        assert Notebook(**found) == definitions([])

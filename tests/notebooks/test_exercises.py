"""The stubs as they stand in the notebooks, and the solutions beside them."""

import importlib
import inspect
import linecache
from pathlib import Path

import nbformat
import pytest

from helpers import check
from tests.check.conftest import kept, shared_ranks  # noqa: F401  fixtures

pytestmark = pytest.mark.usefixtures("shared_ranks")
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def stubs():
    """(week, source) of every cell that is tagged as an exercise."""
    for path in sorted(NOTEBOOKS.glob("week*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if "exercise" in cell.metadata.get("tags", []):
                yield pytest.param(path.name[:6], cell.source, id=f"{path.name[:6]}-{cell.id}")


STUBS = list(stubs())


def define(source):
    """What the cell defines: its one function."""
    linecache.cache["<stub>"] = (len(source), None, source.splitlines(True), "<stub>")
    names = {"__name__": "__main__"}
    exec(compile(source, "<stub>", "exec"), names)
    (function,) = (value for value in names.values() if inspect.isfunction(value))
    return function


@pytest.mark.parametrize(("week", "source"), STUBS)
def test_the_stub_is_told_apart(week, source):
    function = define(source)
    verdict = getattr(check, function.__name__)(function)
    assert verdict.status == "not written yet", verdict


@pytest.mark.parametrize(("week", "source"), STUBS)
def test_the_solution_has_the_stub_s_signature_and_passes(week, source):
    stub = define(source)
    solution = getattr(importlib.import_module(f"notebooks.solutions.{week}"), stub.__name__)
    assert inspect.signature(solution) == inspect.signature(stub)
    assert stub.__doc__
    verdict = getattr(check, stub.__name__)(solution)
    assert verdict, verdict


def test_every_check_has_an_exercise():
    names = {define(stub.values[1]).__name__ for stub in STUBS}
    assert names == set(check._PLACE) - set(check._NO_EXERCISE)

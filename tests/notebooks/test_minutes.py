"""The main path of a notebook takes an hour, by rule; what goes deeper is folded behind it."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ci

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("**/[wp]*.ipynb"))
HOUR = 60
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def minutes():
    return ci("minutes")


def cell(kind, source, *tags, slide="-"):
    metadata = {"tags": list(tags), "slideshow": {"slide_type": slide}}
    return {"cell_type": kind, "source": [source], "metadata": metadata}


def test_what_counts(minutes):
    cells = [
        cell("markdown", "# Title\n\n<details><summary>Two words</summary></details>"),
        cell("markdown", "a note", slide="notes"),
        cell("code", "# Predict: x\nprediction_x = None"),
        cell("code", "import a\nfrom b import (\n    c,\n    d,\n)\n\nassert c"),
        cell("code", "x = 1\nplots.lines(x)\ndef f():\n    return x"),
        cell("markdown", "## 8 · Exercises"),
        cell("code", "y = 1"),
        cell("markdown", "## What to remember"),
        cell("markdown", "## Deeper", "deeper"),
        cell("code", "z = 1", "deeper"),
    ]
    kept = minutes.main_path(cells)
    assert [cells.index(one) for one in kept] == [0, 2, 3, 4, 7]
    found = minutes.count(kept)
    # Words: Title, Two, words; What, to, remember; and two signs of headings.
    assert found == {"cells": 5, "words": 8, "lines": 3, "predictions": 1, "minutes": 4}
    assert minutes.count(filter(minutes.is_deeper, cells))["cells"] == 2


@every_notebook
def test_an_hour(path, minutes):
    """Each notebook says its minutes: those of the main path, up to the next five."""
    counted = minutes.of(path)[0]["minutes"]
    opening = nbformat.read(path, as_version=4).cells[0].source
    said = int(re.search(r"About (\d+) minutes", opening)[1])
    assert counted <= said <= HOUR
    assert said < counted + 10


@every_notebook
def test_what_goes_deeper_is_folded_at_the_end(path, minutes):
    cells = nbformat.read(path, as_version=4).cells
    deeper = [minutes.is_deeper(one) for one in cells]
    assert deeper == sorted(deeper)
    if any(deeper):
        heading = cells[deeper.index(True)]
        assert heading.source.startswith("## Deeper\n")
        assert heading.metadata["jp-MarkdownHeadingCollapsed"] is True

"""What a benchmark writes: for the tests of all benchmarks."""

import csv
import runpy
from pathlib import Path

import pytest

from tests.bench.report import FIGURES


def written(report, folder: Path) -> list[dict[str, str]]:
    """Write a report, and return the rows of its CSV; above them is a line about the machine."""
    report.write(folder)
    with (folder / f"{report.name}.csv").open(encoding="utf-8") as file:
        assert file.readline().startswith("# ")
        return list(csv.DictReader(file))


def drawn(name: str, folder: Path):
    """The chart of the table in this folder; None for a table that is not there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FIGURES)
        draw = runpy.run_path(str(FIGURES / f"{name}_drawing.py"))["draw"]
    assert draw(folder / "nothing.csv") is None
    return draw(folder / f"{name}.csv")

"""The committed table is complete, and a table with an incomplete last line is readable."""

import math

from helpers.scaling.design import rate_for, sweep_runs, tuning_runs
from helpers.scaling.table import append, read


def test_rows_come_back_as_numbers(tmp_path):
    path = tmp_path / "t.csv"
    row = {"name": "a", "width": 8, "loss": 2.5, "curve": "[[64,3.5]]"}
    append(row, path)
    with path.open("a") as file:
        file.write("b,8,2.")  # the process was killed while it wrote
    whole = [{"name": "a", "width": 8, "loss": 2.5, "curve": [[64, 3.5]]}]
    assert read(path) == whole
    append(row | {"name": "c"}, path)
    assert [r["name"] for r in read(path)] == ["a", "c"]
    text = path.read_text().splitlines()
    assert sum(line.startswith("#") for line in text) == 4
    assert sum(line.startswith("name,") for line in text) == 1
    assert "sha256" in text[1]
    assert read(tmp_path / "none.csv") == []


def test_the_committed_table_is_whole_and_lies_on_its_budgets():
    rows = read()
    runs = {run.name: run for run in sweep_runs(*rate_for(rows))}
    there = {row["name"] for row in rows}
    assert runs.keys() <= there
    assert {run.name for run in tuning_runs()} <= there
    for row in rows:
        assert math.isfinite(row["loss"])
        assert row["flops"] == 6 * row["params"] * row["tokens"]

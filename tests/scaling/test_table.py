"""The committed table is complete, and a table with an incomplete last line is readable."""

import math
import os

from helpers.scaling.design import sweep_runs, tuning_runs
from helpers.scaling.table import append, read


def test_rows_come_back_as_numbers(tmp_path):
    path = tmp_path / "t.csv"
    row = {"name": "a", "width": 8, "loss": 2.5, "curve": "[[64,3.5]]"}
    append(row, path, "me")
    with path.open("a") as file:
        file.write("b,8,2.")  # the process was killed while it wrote
    whole = [{"name": "a", "width": 8, "loss": 2.5, "curve": [[64, 3.5]]}]
    assert read(path) == whole
    append(row | {"name": "c"}, path, "me")
    assert [r["name"] for r in read(path)] == ["a", "c"]
    text = path.read_text().splitlines()
    assert sum(line.startswith("#") for line in text) == 4
    assert sum(line.startswith("name,") for line in text) == 1
    assert text[0] == "# made by: me"
    assert "sha256" in text[1]
    assert read(tmp_path / "none.csv") == []
    for begun in ("", "# made by: me\n# text", "\n".join([*text[:4], text[4][:7]])):
        (tmp_path / "begun.csv").write_text(begun)
        append(row, tmp_path / "begun.csv", "me")
        assert (tmp_path / "begun.csv").read_text().splitlines() == text[:-1]


def test_a_row_is_on_the_disk_before_the_next_run(tmp_path, monkeypatch):
    path, synchronized = tmp_path / "t.csv", []
    monkeypatch.setattr(os, "fsync", lambda file: synchronized.append(os.fstat(file).st_size))
    for name in ("a", "b"):
        append({"name": name}, path, "me")
        assert synchronized[-1] == path.stat().st_size  # all of it was written before
    assert len(synchronized) == 2
    assert path.read_text().startswith("# made by: me\n")


def test_the_committed_table_is_whole_and_lies_on_its_budgets():
    rows = read()
    whole = ("layers", "heads", "steps", "seed", "params", "non_embedding", "tokens", "flops")
    real = ("rate", "budget", "epochs", "loss_error", "seconds")
    for row in rows:
        assert {type(row[name]) for name in whole} == {int}
        assert {type(row[name]) for name in real} == {float}
    runs = {run.name: run for run in sweep_runs(rows)}
    there = {row["name"] for row in rows}
    assert runs.keys() <= there
    assert {run.name for run in tuning_runs()} <= there
    for row in rows:
        assert math.isfinite(row["loss"])
        assert row["flops"] == 6 * row["params"] * row["tokens"]

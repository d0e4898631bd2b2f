"""A study trains the runs that its table lacks, and its command says how many are left."""

from dataclasses import replace

import pytest

from helpers.scaling import families, sweep
from helpers.scaling.design import Run
from helpers.scaling.table import append, read

RUN = Run(phase="tuning", family="hybrid", width=16, layers=2, heads=2, steps=4, rate=1e-2)
SECOND = replace(RUN, phase="equal compute", seed=1, budget=1e8)
STUDIES = {"sweep": (sweep.SWEEP, 33), "families": (families.STUDY, 36)}


def study(**changed):
    options = {"command": "me", "about": "x", "tuning": lambda: [RUN], "sequences": 16}
    options |= {"table": None, "runs": lambda rows: [replace(SECOND, seed=len(rows))]}
    return sweep.Study(**options | changed)


@pytest.fixture
def asked(monkeypatch):
    """Each farm: its tasks as (name, sequences), and its workers; every task gives a row."""
    found = []

    def farm(fn, tasks, *, workers, done):
        assert fn is sweep.carry_out
        found.append(([(task["run"].name, task["sequences"]) for task in tasks], workers))
        for place, task in enumerate(tasks):
            done(place, {"name": task["run"].name, **task["run"].settings, "loss": 1.0})

    monkeypatch.setattr(sweep, "farm", farm)
    monkeypatch.setattr(sweep, "cores", lambda: 7)
    return found


def test_it_tunes_first_and_trains_each_run_once(tmp_path, asked):
    path, last = tmp_path / "t.csv", replace(SECOND, seed=1)
    rows = study().carry_out(path, workers=3)
    assert [row["name"] for row in rows] == [RUN.name, last.name]
    assert asked == [([(RUN.name, 16)], 3), ([(last.name, 16)], 3)]
    assert path.read_text().startswith("# made by: me\n")
    asked.clear()
    assert study(runs=lambda rows: [last]).carry_out(path) == rows
    assert asked == [([], 7), ([], 7)]  # by default a process per core
    assert study(table=path, runs=lambda rows: [last]).carry_out() == rows


def test_your_own_sweep_has_no_tuning(tmp_path, asked):
    rows = sweep.sweep(tmp_path / "t.csv", runs=[RUN, SECOND], workers=2, sequences=9)
    assert asked == [([(RUN.name, 9), (SECOND.name, 9)], 2)]
    assert [row["name"] for row in rows] == [RUN.name, SECOND.name]
    sweep.sweep(tmp_path / "t.csv", runs=[replace(RUN, seed=5)])
    assert asked[1] == ([(replace(RUN, seed=5).name, sweep.HELD_OUT)], 7)


@pytest.mark.parametrize("name", STUDIES)
def test_the_command_lists_what_is_left(name, tmp_path, monkeypatch, capsys):
    one, total = STUDIES[name]
    rows, some, few = read(one.table), tmp_path / "some.csv", tmp_path / "few.csv"
    assert rows[0]["phase"] == "tuning"
    for path, kept in ((some, rows[:-2]), (few, rows[1:])):  # without runs; without a tuning run
        for row in kept:
            append(row, path, "me")
    heads = [f"{n} rows in the table; {m} tuning runs left" for n, m in (
        (len(rows), 0), (len(rows) - 2, 0), (len(rows) - 1, 1))]  # fmt: skip
    for options, said in (
        ([], [heads[0], f"0 of {total} runs left"]),
        (["--table", str(some)], [heads[1], f"2 of {total} runs left"]),
        (["--table", str(few)], [heads[2]]),
    ):
        monkeypatch.setattr("sys.argv", [name, "--dry", *options])
        one.main()
        assert capsys.readouterr().out.splitlines() == said


def test_the_command_fills_the_table(tmp_path, monkeypatch, asked, capsys):
    path = tmp_path / "t.csv"
    monkeypatch.setattr("sys.argv", ["x", "--table", str(path), "--workers", "3"])
    study().main()
    assert [workers for _, workers in asked] == [3, 3]
    assert len(read(path)) == 2
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("sys.argv", ["x", "--help"])
    with pytest.raises(SystemExit):
        study().main()
    assert capsys.readouterr().out.startswith("usage: me ")

"""The sweep goes on where it was, its runs have the budgets they say, and its table is whole."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from helpers.models.gpt import build
from helpers.scaling import sweep
from helpers.scaling.sweep import Run, carry_out, rate_for, read, sweep_runs

SMALL = [
    Run(phase="sweep", width=8, layers=1, heads=1, steps=steps, rate=1e-2, seed=seed)
    for steps, seed in ((4, 0), (5, 0), (4, 1))
]


def test_every_budget_has_six_sizes_and_keeps_to_its_flops():
    runs = [run for run in sweep_runs(0.1, -0.5) if run.phase == "sweep"]
    for budget in sweep.BUDGETS:
        own = [run for run in runs if run.budget == budget]
        sizes = {sum(p.numel() for p in build(run.config).parameters()) for run in own}
        assert len(sizes) >= 6
        for run in own:
            count = sum(p.numel() for p in build(run.config).parameters())
            flops = 6 * count * run.steps * sweep.BATCH * sweep.LENGTH
            assert flops == pytest.approx(budget, rel=0.01)
    assert len({run.name for run in sweep_runs(0.1, -0.5)}) == len(sweep_runs(0.1, -0.5))


def test_the_rate_follows_the_vertices_of_the_tuned_widths():
    # losses that are parabolas over log(rate), with their vertex at 0.3 / width
    rows = [
        {"phase": "tuning", "width": w, "rate": rate, "loss": math.log(rate * w / 0.3) ** 2}
        for w in (16, 32, 64)
        for rate in sweep.RATES
    ]
    scale, power = rate_for(rows)
    assert scale == pytest.approx(0.3, rel=1e-6)
    assert power == pytest.approx(-1, rel=1e-6)
    with pytest.raises(ValueError, match="two are needed"):
        rate_for(rows[: len(sweep.RATES)])


def test_a_row_says_what_was_trained(tmp_path):
    rows = sweep.sweep(tmp_path / "s.csv", workers=2, runs=SMALL)
    assert {row["name"] for row in rows} == {run.name for run in SMALL}
    for row in rows:
        assert row["tokens"] == row["steps"] * sweep.BATCH * sweep.LENGTH
        assert row["flops"] == 6 * row["params"] * row["tokens"]
        assert 0 < row["loss_error"] < 0.1
        assert 3 < row["loss"] < math.log(256)  # hardly trained
    text = (tmp_path / "s.csv").read_text()
    assert "sha256" in text.splitlines()[1]


def test_it_goes_on_where_it_was_killed(tmp_path):
    table = tmp_path / "s.csv"
    program = (
        "from pathlib import Path\n"
        "from helpers.scaling import sweep\n"
        "run = sweep.Run(phase='sweep', width=8, layers=1, heads=1, steps=4, rate=1e-2)\n"
        "from dataclasses import replace\n"
        "runs = [run, *(replace(run, steps=100_000, seed=s) for s in range(3))]\n"
        "if __name__ == '__main__':\n"
        f"    sweep.sweep(Path({str(table)!r}), workers=2, runs=runs)\n"
    )
    (tmp_path / "go.py").write_text(program)
    root = os.path.dirname(os.path.dirname(os.path.dirname(sweep.__file__)))
    process = subprocess.Popen(
        [sys.executable, tmp_path / "go.py"], env={**os.environ, "PYTHONPATH": root}
    )
    end = time.monotonic() + 120
    while not read(table) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = read(table)
    assert [row["name"] for row in first] == [SMALL[0].name]
    with table.open("a") as file:
        file.write("half a li")  # as if it had been killed while it wrote
    assert read(table) == first
    rows = sweep.sweep(table, workers=2, runs=SMALL)
    assert rows[0] == first[0]  # not trained again
    assert {row["name"] for row in rows} == {run.name for run in SMALL}
    assert "half" not in table.read_text()


def test_losses_on_the_way_are_those_of_the_same_run():
    from helpers.runtime.launch import launch

    run = replace(SMALL[0], steps=160)
    row = launch(carry_out, 1, device="cpu", run=run)[0]
    curve = json.loads(row["curve"])
    assert [tokens // (sweep.BATCH * sweep.LENGTH) for tokens, _ in curve] == [40, 80]
    losses = [loss for _, loss in curve] + [row["loss"]]
    assert losses == sorted(losses, reverse=True)


def test_the_committed_table_is_whole_and_lies_on_its_budgets():
    rows = read()
    runs = {run.name: run for run in sweep_runs(*rate_for(rows))}
    there = {row["name"] for row in rows}
    assert runs.keys() <= there
    assert {run.name for run in sweep.tuning_runs()} <= there
    for row in rows:
        assert math.isfinite(row["loss"])
        assert row["flops"] == 6 * row["params"] * row["tokens"]


def test_fewer_held_out_sequences_lie_evenly_among_all():
    validation = sweep.pack("python", length=sweep.LENGTH, split="validation")
    few, every = (sweep.spread_out(validation, n) for n in (512, sweep.HELD_OUT))
    tokens = torch.cat([batch.tokens for batch in every])
    assert len(tokens) == sweep.HELD_OUT
    assert torch.equal(torch.cat([batch.tokens for batch in few]), tokens[::16])

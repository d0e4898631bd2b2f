"""Each run keeps to its budget, and the learning rates follow the tuned ones."""

import math
from dataclasses import fields, replace

import pytest

from helpers.scaling.design import (
    BATCH,
    BUDGETS,
    LENGTH,
    RATES,
    REPEATS,
    WARM_UP,
    Run,
    rate_for,
    sweep_runs,
    tuning_runs,
)
from helpers.scaling.table import read


def tuned(rate):
    """Rows of the tuning whose best rate at each width is `rate(width)`."""
    return [
        run.settings | {"loss": math.log(run.rate / rate(run.width)) ** 2} for run in tuning_runs()
    ]


def test_every_budget_has_six_sizes_and_keeps_to_its_flops():
    every = sweep_runs(tuned(lambda width: 0.04 / math.sqrt(width)))
    runs = [run for run in every if run.phase == "sweep"]
    for budget in BUDGETS:
        own = [run for run in runs if run.budget == budget]
        models = [run.config.build(device="meta") for run in own]
        counts = [sum(p.numel() for p in model.parameters()) for model in models]
        assert len(set(counts)) == len(own) == 6
        for run, count in zip(own, counts, strict=True):
            flops = 6 * count * run.steps * BATCH * LENGTH
            assert flops == pytest.approx(budget, rel=0.01)
    assert len({run.name for run in every}) == len(every)
    assert [run.budget for run in every] == sorted((run.budget for run in every), reverse=True)
    repeats = [run for run in every if run.phase == "repeat"]
    assert {run.seed for run in repeats} == set(range(1, REPEATS))
    assert len({(run.width, run.layers, run.steps, run.rate) for run in repeats}) == 1
    assert {run.budget for run in repeats} == {BUDGETS[2]}
    for run in every:  # three digits of 0.04 / sqrt(width)
        assert run.rate == pytest.approx(0.04 / math.sqrt(run.width), rel=5e-3)
        assert run.rate == float(f"{run.rate:.2e}")


def test_each_width_is_tuned_on_every_rate_with_equal_steps():
    runs = tuning_runs()
    assert {run.phase for run in runs} == {"tuning"}
    assert len({(run.steps, run.seed, run.budget) for run in runs}) == 1
    for width in {run.width for run in runs}:
        assert [run.rate for run in runs if run.width == width] == list(RATES)


def test_the_committed_table_has_these_runs():
    """So a changed constant is an error here, and not a table that is half old and half new."""
    rows = read()
    runs = [*tuning_runs(), *sweep_runs(rows)]
    assert {run.name for run in runs} == {row["name"] for row in rows}
    steps = {run.name: run.steps for run in runs}
    assert all(row["tokens"] == steps[row["name"]] * BATCH * LENGTH for row in rows)
    assert (LENGTH, BATCH) == (64, 16)
    assert WARM_UP == 0.05


def test_a_name_depends_on_every_setting_and_on_nothing_else():
    run = Run(phase="sweep", width=16, layers=2, heads=4, steps=9, rate=0.5)
    changed = [
        replace(run, **{one.name: "tuning" if one.name == "phase" else 32}) for one in fields(run)
    ]
    assert len({one.name for one in (run, *changed)}) == 1 + len(fields(run))
    assert replace(run).name == run.name
    config = run.config
    assert (config.vocab, config.context, config.width) == (256, LENGTH, 16)
    assert (config.layers, config.heads) == (2, 4)


def test_the_rate_follows_the_vertices_of_the_tuned_widths():
    # Each width's loss is a parabola over log(rate), with its vertex at 0.3 / width.
    rows = [
        {"phase": "tuning", "width": w, "rate": rate, "loss": math.log(rate * w / 0.3) ** 2}
        for w in (16, 32, 64)
        for rate in RATES
    ]
    scale, power = rate_for(rows)
    assert scale == pytest.approx(0.3, rel=1e-6)
    assert power == pytest.approx(-1, rel=1e-6)
    # Runs end in any order, and other phases' runs do not count.
    other = {"phase": "sweep", "width": 16, "rate": RATES[1] * 1.1, "loss": -1.0}
    mixed = [other, *rows[1::2], *rows[::2]]
    assert rate_for(mixed) == pytest.approx((scale, power), rel=1e-9)
    # only the lowest and its neighbours count
    bent = [row | {"loss": 3 * row["loss"]} if row["rate"] == RATES[0] else row for row in rows]
    assert rate_for(bent) == pytest.approx((scale, power), rel=1e-9)
    # the lowest loss is at the grid's edge: no parabola, and no rate beyond the grid
    rows = [
        {"phase": "tuning", "width": w, "rate": rate, "loss": math.log(rate / 5e-4) ** 3}
        for w in (16, 32)
        for rate in RATES
    ]
    assert rate_for(rows) == (pytest.approx(RATES[0]), pytest.approx(0, abs=1e-9))
    rows = [{**row, "loss": -row["loss"]} for row in rows]
    assert rate_for(rows) == (pytest.approx(RATES[-1]), pytest.approx(0, abs=1e-9))
    with pytest.raises(ValueError, match="two are needed"):
        rate_for(rows[: len(RATES)])

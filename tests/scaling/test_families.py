"""Three families at equal compute: the runs, the table, and the paired differences."""

import math

import numpy as np
import pytest

from helpers.models.counts import flops_per_token, parameters
from helpers.scaling import families
from helpers.scaling.design import BATCH, FAMILIES, LENGTH, Run, model_of, rate_for
from helpers.scaling.families import SIZES, differences, interval
from helpers.scaling.sweep import carry_out
from helpers.scaling.table import read


def test_the_models_of_one_size_are_alike():
    for size, _ in SIZES:
        count = {f: parameters(model_of(*size, f)).total for f in FAMILIES}
        assert max(count.values()) < 1.3 * min(count.values()), (size, count)
    small, hybrid = model_of(*SIZES[2][0], "mamba2"), model_of(*SIZES[2][0], "hybrid")
    assert small.layers == 2 * hybrid.layers
    assert set(small.mixers) == {"mamba2"}
    assert (small.mlp, small.positions) == ("none", "none")
    assert hybrid.mixers == ("mamba2", "attention", "mamba2")
    with pytest.raises(ValueError, match="no family 'rnn'; choose one of transformer"):
        model_of(8, 1, 1, "rnn")


def test_each_run_spends_its_budget_on_equally_tuned_rates():
    best = {"transformer": 0.3, "mamba2": 0.2, "hybrid": 0.4}
    rows = [
        run.settings | {"loss": 2 + math.log(run.rate * run.width / best[run.family]) ** 2}
        for run in families.family_tuning()
    ]
    runs = families.family_runs(rows)
    assert len(runs) == len(FAMILIES) * len(SIZES) * families.SEEDS
    assert len({run.name for run in runs}) == len(runs)
    assert {run.seed for run in runs} == {0, 1, 2}
    for run in runs:
        spent = run.steps * BATCH * LENGTH * flops_per_token(run.config, LENGTH)
        assert spent == pytest.approx(run.budget, rel=2e-3)
        assert run.rate == pytest.approx(best[run.family] / run.width, rel=1e-2)
    assert [run.budget for run in runs] == sorted((run.budget for run in runs), reverse=True)


def rows_of(losses):
    """Rows from {(family, width): losses of the seeds}."""
    return [
        {"phase": "equal compute", "family": f, "width": w, "seed": seed, "loss": loss}
        for (f, w), several in losses.items()
        for seed, loss in enumerate(several)
    ]


def test_differences_are_paired_by_seed():
    rows = rows_of(
        {
            ("hybrid", 24): (1.9, 2.4, 2.9),
            ("transformer", 24): (2.0, 2.5, 3.0),
            ("hybrid", 32): (1.5, 1.6, 1.7),
            ("transformer", 32): (1.5, 1.4, 1.6),
        }
    )
    rows += [{"phase": "tuning", "family": "hybrid", "width": 24, "seed": 0, "loss": 9.0}]
    first, second = differences(rows, "hybrid", "transformer")
    assert (first.width, second.width) == (24, 32)
    assert first.mean == pytest.approx(-0.1)
    assert first.half == pytest.approx(0, abs=1e-9)  # the seeds' own spread cancels
    assert second.mean == pytest.approx(0.1)
    assert second.half == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    (back, _) = differences(reversed(rows), "transformer", "hybrid")
    assert back.mean == pytest.approx(0.1)


def test_pairs_that_are_missing_are_named():
    rows = rows_of({("hybrid", 24): (1.9, 2.4, 2.9), ("transformer", 24): (2.0,)})
    with pytest.raises(ValueError, match="width 24: 1 pairs of hybrid and transformer"):
        differences(rows, "hybrid", "transformer")
    rows += [{**rows[-1], "seed": 1}]
    assert differences(rows, "hybrid", "transformer")[0].mean == pytest.approx(0.15)


def test_the_interval_holds_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(4000):
        mean, half = interval(rng.normal(1.0, 0.5, 3))
        inside += abs(mean - 1.0) <= half
    assert inside / 4000 == pytest.approx(0.95, abs=0.015)


def test_the_committed_table_is_whole_and_compute_is_equal():
    rows = read(families.TABLE)
    there = {row["name"]: row for row in rows}
    wanted = families.family_tuning() + families.family_runs(rows)
    assert {run.name for run in wanted} == there.keys()
    for run in wanted:
        row = there[run.name]
        assert math.isfinite(row["loss"])
        assert row["params"] == parameters(run.config).total
        if run.budget:
            assert row["exact_flops"] == pytest.approx(run.budget, rel=2e-3)
    for family in FAMILIES:
        scale, power = rate_for(row for row in rows if row["family"] == family)
        assert scale > 0
        assert -3 < power < 1


def test_the_loss_falls_with_size_in_every_family():
    rows = [row for row in read(families.TABLE) if row["phase"] == "equal compute"]
    for family in FAMILIES:
        means = [
            np.mean([r["loss"] for r in rows if (r["family"], r["width"]) == (family, width)])
            for (width, _, _), _ in SIZES
        ]
        assert means == sorted(means, reverse=True)


def test_carry_out_takes_a_run_of_a_family():
    class Place:
        device = "cpu"

    run = Run(phase="tuning", family="mamba2", width=16, layers=1, heads=1, steps=2, rate=1e-2)
    row = carry_out(Place(), run, sequences=16)
    assert (row["family"], row["name"]) == ("mamba2", run.name)

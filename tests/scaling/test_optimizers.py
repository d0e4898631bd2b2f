"""AdamW and Muon at equal compute: FLOPs as measured, equal budgets, paired losses."""

from types import SimpleNamespace

import pytest

from helpers.data.batch import random_batch
from helpers.measure.flops import flops_of
from helpers.parallel.single import Single
from helpers.scaling import optimizers, spend
from helpers.scaling.design import BATCH, LENGTH
from helpers.scaling.optimizers import MODEL, RULES, compared, curves, step_flops
from tests.bench.compare import one_thread


@pytest.mark.parametrize("rule", RULES)
def test_a_step_has_the_counted_flops(rule):
    strategy = Single(MODEL, optimizer=RULES[rule]())
    batch = random_batch(0, BATCH, LENGTH, MODEL.vocab)
    found = flops_of(lambda: strategy.step(batch))
    assert found.model == step_flops(rule)


def test_each_run_spends_its_budget_and_is_trained(monkeypatch):
    here = lambda fn, tasks, workers: [fn(SimpleNamespace(device="cpu"), **t) for t in tasks]  # noqa: E731
    monkeypatch.setattr(optimizers, "farm", here)
    monkeypatch.setattr(optimizers, "STOPS", 2)
    monkeypatch.setattr(spend, "HELD_OUT", 16)
    budget = 12 * step_flops("AdamW")
    with one_thread():
        rows = curves({"AdamW": [8e-3], "Muon": [8e-3, 3.2e-2]}, seeds=2, budget=budget)
    runs = [(row["rule"], row["rate"], row["seed"]) for row in rows]
    kinds = [("AdamW", 8e-3), ("Muon", 8e-3), ("Muon", 3.2e-2)]
    assert runs[::2] == runs[1::2] == [(*kind, seed) for kind in kinds for seed in range(2)]
    for first, last in zip(rows[::2], rows[1::2], strict=True):
        assert first["step"] == pytest.approx(last["step"] / 2, abs=0.5)
        assert last["flops"] == pytest.approx(budget, rel=0.05)
        assert (first["flops"] / first["step"], last["flops"] / last["step"]) == (
            (step_flops(last["rule"]),) * 2
        )
        assert last["loss"] < first["loss"] < 5.6
    assert rows[-1]["step"] < rows[1]["step"] == 12
    assert len({row["loss"] for row in rows}) == len(rows)  # rules, rates and seeds differ


def test_each_rule_has_its_best_rate_and_pairs_have_one_seed():
    losses = {("AdamW", 1.0): (2.0, 2.2), ("AdamW", 2.0): (1.0, 3.0),
              ("Muon", 1.0): (1.5, 1.5), ("Muon", 3.0): (1.4, 1.5)}  # fmt: skip
    rows = [
        {"rule": rule, "rate": rate, "seed": seed, "loss": loss}
        for (rule, rate), last in losses.items()
        for seed, end in enumerate(last)
        for loss in (9.0, end)
    ]
    found = compared(rows)
    assert found.rates == {"AdamW": 2.0, "Muon": 3.0}
    assert found.losses == pytest.approx({"AdamW": 2.0, "Muon": 1.45})
    assert found.mean == pytest.approx((0.4 - 1.5) / 2)
    assert found.half == pytest.approx(12.7062 * 0.95, rel=1e-4)

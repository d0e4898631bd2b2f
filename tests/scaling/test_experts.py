"""Dense and sparse at equal compute: FLOPs as measured, equal budgets, loads that are recorded."""

from types import SimpleNamespace

import pytest

from helpers.data.batch import random_batch
from helpers.measure.flops import flops_of
from helpers.models.counts import parameters
from helpers.parallel.single import Single
from helpers.scaling import experts, spend
from helpers.scaling.design import BATCH, LENGTH
from helpers.scaling.experts import BATCHES, KINDS, config_of, curves, step_flops
from tests.bench.compare import one_thread


@pytest.mark.parametrize("kind", ["dense", "no balance", "bias"])
def test_a_step_has_the_counted_flops(kind):
    strategy = Single(config_of(kind))
    batch = random_batch(0, BATCH, LENGTH, 256)
    found = flops_of(lambda: strategy.step(batch))
    assert found.model == step_flops(kind) == pytest.approx(step_flops("dense"), rel=0.02)
    if KINDS[kind]:
        matrices = 2 * 3 * 64 * 176
        assert parameters(config_of(kind)).idle == 3 * matrices


def test_each_run_spends_its_budget_and_records_its_loads(monkeypatch):
    here = lambda fn, tasks, workers: [fn(SimpleNamespace(device="cpu"), **t) for t in tasks]  # noqa: E731
    monkeypatch.setattr(experts, "farm", here)
    monkeypatch.setattr(experts, "STOPS", 2)
    monkeypatch.setattr(spend, "HELD_OUT", 128)
    budget = 10 * step_flops("dense")
    with one_thread():
        rows = curves(("dense", "bias", "loss, drops"), seeds=2, budget=budget)
    assert len(rows) == 12
    for first, last in zip(rows[::2], rows[1::2], strict=True):
        assert last["flops"] == pytest.approx(budget, rel=0.05)
        assert last["loss"] < first["loss"] < 5.6
        assert {first[name] for name in ("loads", "dropped", "distinct")} == {""}
        if KINDS[last["kind"]] is None:
            assert last["loads"] == ""
            continue
        loads = [float(share) for share in last["loads"].split()]
        assert len(loads) == 16
        assert [sum(loads[:8]), sum(loads[8:])] == pytest.approx([1, 1], abs=1e-3)
        distinct = [float(number) for number in last["distinct"].split()]
        assert len(distinct) == len(BATCHES)
        assert distinct == sorted(distinct)
        assert distinct[0] == 2
        assert distinct[-1] <= 8
        assert (last["dropped"] > 0) == ("drops" in last["kind"])
    assert len({row["loss"] for row in rows}) == len(rows)

"""What `drift` passes on to the ranks, and what it compares. No rank is started."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.training import drift as drifts
from helpers.training.drift import drift, first_drift
from helpers.training.twin import some_batch
from helpers.training.witness import Witness

TINY = GPTConfig(vocab=32, context=8, width=16, layers=1, heads=2)


def of(value):
    return Witness(torch.arange(2), before={"w": torch.full((3,), value, dtype=torch.float64)})


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.01)]
)
def test_settings_reach_the_ranks_and_a_dtype_has_its_own_bound(monkeypatch, dtype, near):
    asked, off = [], 0.9

    def launched(fn, workers, *, device, **given):
        asked.append((fn, workers, device, given))
        last = [of(1.0), of(1.0 + off * near)]  # the last rank departs, in the last step
        return [*[[of(1.0)] * 2] * 3, last]

    monkeypatch.setattr(drifts, "launch", launched)
    rule, layout = OptimizerConfig(lr=0.25), {"dp": 2, "tp": 2}
    settings = {
        "layout": layout, "steps": 2, "config": TINY, "sequences": 5, "dtype": dtype,
        "optimizer": rule, "seed": 3, "device": "cpu",
    }  # fmt: skip
    assert drift(Single, extra=1, **settings) is None
    off = 1.1
    found = drift(Single, **settings)
    assert (found.step, found.ranks, found.kind, found.name) == (1, (2, 3), "start", "w")
    assert drift(Single, axis="dp", **settings).ranks == (1, 3)
    fn, workers, device, given = asked[0]
    assert (fn, workers, device) == (drifts.watch, 4, "cpu")
    batches = given.pop("batches")
    assert torch.equal(batches(1).tokens, some_batch(3, 5, TINY, 1).tokens)
    assert given == {
        "strategy": Single, "layout": layout, "options": {"extra": 1}, "config": TINY, "seed": 3,
        "dtype": dtype, "rule": rule, "steps": 2,
    }  # fmt: skip


def test_of_two_groups_both_are_compared_and_the_earlier_pass_counts():
    layout = Layout(dp=2, tp=2)
    late = Witness(torch.arange(2), before={"w": torch.ones(3)}, loss=7.0)
    ranks = [of(1.0), late, of(1.0), of(2.0)]  # ranks 0 and 1 differ in their losses alone
    found = first_drift(ranks, {}, layout, "tp", 1e-12)
    assert (found.ranks, found.kind, found.off) == ((2, 3), "start", 1.0)


def test_a_rank_trains_step_after_step_and_closes(monkeypatch):
    seen = []

    class Told(Single):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            self.data_rank, self.data_size = 1, 2

        def step(self, batch, lr=None):
            seen.append((batch.step, batch.numbers.tolist()))
            return super().step(batch, lr)

        def close(self):
            seen.append("closed")

    monkeypatch.setattr(drifts, "make_mesh", lambda layout, device: layout)
    rule, batches = OptimizerConfig(lr=0.1), partial(some_batch, 0, 4, TINY)
    worker = SimpleNamespace(rank=1, device=torch.device("cpu"))
    made = lambda config, seed, mesh, **options: Told(config, seed, **options)  # noqa: E731
    records = drifts.watch(
        worker, made, {"dp": 2}, {}, TINY, 0, torch.float64, rule, batches, steps=2
    )
    assert seen == [(0, [2, 3]), (1, [2, 3]), "closed"]
    assert [record.numbers.tolist() for record in records] == [[2, 3]] * 2
    for name, value in records[0].parameters.items():
        assert torch.equal(records[1].before[name], value)

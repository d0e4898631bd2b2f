"""Bytes of a rank by kind, measured, against the formulas of the ZeRO paper (section 5, Figure 1).

P parameters, N ranks. fp32: 4 P for parameters, 4 P for gradients, 8 P for AdamW's moments. Mixed
precision: 2 P, 2 P and 12 P (fp32 copies and moments). A stage divides its kinds by N.
"""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.measure.memory import LiveStorages
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.film import filming
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch

EVEN = GPTConfig(vocab=64, context=8, width=16, layers=3, heads=2, tied=False)  # no padding
DIVIDED = {  # the kinds that a stage divides by N
    Zero1: {"optimizer"},
    Zero2: {"optimizer", "gradients"},
    Zero3: {"optimizer", "gradients", "parameters"},
}
FORMULA = {  # bytes of a parameter
    "fp32": {"parameters": 4, "gradients": 4, "optimizer": 8},
    "mixed": {"parameters": 2, "gradients": 2, "optimizer": 12},
}


PRECISIONS = {"fp32": Plain(), "mixed": Mixed()}


def measured(worker, precision):
    """Bytes by kind when the backward has ended, and between steps, for each stage."""
    mesh, found = make_mesh(Layout(dp=worker.world_size)), []
    for owner in DIVIDED:
        trainer = Recipe(owner=owner, precision=precision)(EVEN, 0, mesh)
        batch = random_batch(worker.rank, 2, 8, EVEN.vocab)
        trainer.step(batch)
        with filming(trainer.owner) as film:
            trainer.step(batch)
        ends = [i for i, e in enumerate(film.events) if e["state"] == "updating"]
        now = {(e["unit"], e["kind"]): e["bytes"] for e in film.events[: ends[0]]}
        totals: dict[str, int] = {}
        for (_, kind), nbytes in now.items():
            totals[kind] = totals.get(kind, 0) + nbytes
        assert not totals.pop("gathered", 0)  # everything gathered has been freed
        end = {
            "parameters": totals["parameters"],
            "gradients": totals["gradients"] + totals["gradient shard"],
            "optimizer": totals["optimizer"] + totals.get("master copies", 0),
        }
        counts = 4 * len(trainer.optimizer.state)  # AdamW's number of steps, for each tensor
        end["optimizer"] -= counts
        held = {kind: nbytes for (kind, _), nbytes in trainer.held().items()}
        held["optimizer"] -= counts
        found.append((end, held))
        trainer.close()
    return found


def everything(worker):
    torch.set_num_threads(1)
    return {kind: measured(worker, one) for kind, one in PRECISIONS.items()} | {
        "peak": peak(worker)
    }


@pytest.fixture(scope="module")
def runs():
    return launch(everything, 4, device="cpu")


@pytest.mark.parametrize("kind", PRECISIONS)
def test_memory_by_kind_is_the_paper_s(runs, kind):
    workers = 4
    total = sum(p.numel() for p in EVEN.build(device="meta").parameters())
    for run in runs.column(kind):
        for (owner, divided), (end, held) in zip(DIVIDED.items(), run, strict=True):
            expected = {
                what: nbytes * total // (workers if what in divided else 1)
                for what, nbytes in FORMULA[kind].items()
            }
            assert end == expected, owner
            assert held["parameters"] == expected["parameters"]
            copies = held.pop("master copies", 0)
            assert held["optimizer"] + copies == expected["optimizer"]
            # the optimizer needs gradients in its own format: 4 bytes for this rank's shard
            wide = 4 * total // workers if kind == "mixed" else 0
            kept = 0 if kind == "mixed" and owner is not Zero1 else expected["gradients"]
            assert held["gradients"] == wide + kept


class RealStorages(LiveStorages):
    """Without tensors on "meta", which have no memory."""

    def _see(self, things):
        tensors = [t for t in tree_leaves(things) if isinstance(t, torch.Tensor)]
        super()._see([t for t in tensors if t.device.type != "meta"])


DEEP = GPTConfig(vocab=32, context=2, width=64, layers=24, heads=2)


def peak(worker):
    """The highest sum of all living tensors, from the model's creation to its second step."""
    rule = OptimizerConfig(rule=torch.optim.SGD)
    mesh = make_mesh(Layout(dp=worker.world_size))
    batch = random_batch(worker.rank, 1, 2, DEEP.vocab)
    with RealStorages([]) as live:
        trainer = Recipe(owner=Zero3)(DEEP, 0, mesh, optimizer=rule)
        for _ in range(2):
            trainer.step(batch)
            trainer.evaluate(batch)
    return live.peak


def test_a_model_that_does_not_fit_is_never_whole_on_any_rank(runs):
    """Shards of parameters and gradients are half of it on four ranks; the rest is for units."""
    whole = sum(p.nbytes for p in DEEP.build(device="meta").parameters())
    for bytes_at_once in runs.column("peak"):
        assert whole / 2 < bytes_at_once < 0.75 * whole

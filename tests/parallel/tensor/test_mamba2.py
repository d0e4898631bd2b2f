"""Mamba-2 cut by heads, beside one process; what cannot be cut is refused.

Tolerance: 1e-12 absolute in float64; the sums over ranks add in another order.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.bamba import bamba
from helpers.models.config import GPTConfig
from helpers.models.ssm_settings import Mamba2Settings
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.placement import placed
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.state.placing import Seat
from helpers.training.twin import compare

pytestmark = pytest.mark.usefixtures("kept_ranks")
SIZES = Mamba2Settings(state=3, head=8, chunk=5)
PURE = GPTConfig(
    vocab=33, context=12, width=24, layers=1, positions="none", mlp="none", mixer="mamba2",
    mamba2=SIZES,
)  # fmt: skip
HYBRID = bamba(2, [1], vocab=33, context=12, width=24, hidden=20, heads=6, kv_heads=1, mamba2=SIZES)
TRANSFORMS = {"tensor": tensor_parallel, "sequence": sequence_parallel}
every_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


def twin(transform, config, ranks=2, **changes):
    options = {"layout": {"tp": ranks}, "steps": 2, "device": "cpu", "sequences": 3, **changes}
    owner = {"owner": options.pop("owner")} if "owner" in options else {}
    workers = options.pop("workers", ranks)
    return compare(Recipe(transform=transform, **owner), workers=workers, config=config, **options)


@pytest.mark.parametrize("groups", [1, 2], ids="{} groups".format)
@every_transform
def test_two_ranks_equal_one_process(transform, groups):
    """With one group, the ranks share B and C, and sum the norm's squares."""
    config = replace(PURE, mamba2=replace(SIZES, groups=groups), bias=groups == 2)
    comparison = twin(transform, config)
    assert comparison, comparison


def test_three_ranks_with_two_groups_each_equal_one_process():
    comparison = twin(sequence_parallel, replace(PURE, mamba2=replace(SIZES, groups=6)), 3)
    assert comparison, comparison


@every_transform
def test_a_hybrid_equals_one_process(transform):
    """Grouped queries, rotary on half a head, dropout, and blocks that run again."""
    config = replace(HYBRID, dropout=0.2, recompute="full")
    comparison = twin(partial(transform, overlap=False), config, micro_batches=2)
    assert comparison, comparison


def test_with_data_parallel():
    changes = {"workers": 4, "layout": {"dp": 2, "tp": 2}, "owner": Replicated}
    comparison = twin(tensor_parallel, HYBRID, **changes)
    assert comparison, comparison


def test_each_rank_has_some_of_the_heads():
    shapes = {name: tuple(p.shape) for name, p in HYBRID.build(device="meta").named_parameters()}
    parts = placed(Seat(Layout(tp=2), 1), HYBRID, shapes, "tp")
    at = "blocks.0.mamba2."
    for name, rows in (("inner.weight", (24, 48)), ("A_log", (3, 6)), ("delta.bias", (3, 6)),
                       ("convolution.weight", (24, 48)), ("gated_norm.weight", (24, 48)),
                       ("B.weight", (0, 3)), ("convolution_C.bias", (0, 3))):  # fmt: skip
        assert parts[at + name].ranges(0) == (rows,), name
    assert parts[at + "out.weight"].ranges(1) == ((24, 48),)
    for name, part in parts.items():
        shared = name.startswith((at + "B", at + "C", at + "convolution_"))
        keys = name.endswith(("attention.key.weight", "attention.value.weight"))
        assert bool(part.pending) == (shared or keys), name


def sent(worker, groups):
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(tp=worker.world_size))
    config = replace(PURE, mamba2=replace(SIZES, groups=groups))
    trainer = Recipe(transform=tensor_parallel)(config, 0, mesh, dtype=torch.float64)
    batch = random_batch(0, 2, 12, 33)
    with ledger() as book:
        trainer.model.loss(batch)[0].backward()
    return {"payload": book.payload, "calls": len(book.entries)}


def test_one_group_costs_one_number_per_token():
    """Beside groups of a rank's own: B T numbers forward, B T backward, for the norm's squares."""
    (one, _), (two, _) = (launch(sent, 2, device="cpu", groups=groups) for groups in (1, 2))
    assert one["calls"] - two["calls"] == 2
    assert one["payload"] - two["payload"] == 2 * (2 * 12 * 8)


def step(worker, config, strategy):
    return strategy(config, 0, make_mesh(Layout(tp=worker.world_size))).world_size


@pytest.mark.parametrize(
    ("config", "ranks", "words"),
    [
        (replace(PURE, mixer="mamba"), 2, "block 0 has mixer 'mamba', which is not cut over ranks"),
        (replace(PURE, mamba2=replace(SIZES, head=16)), 2, "3 mamba2 heads do not divide over 2"),
        (replace(PURE, mamba2=replace(SIZES, groups=3)), 2, "3 mamba2 groups on 2 ranks: a rank"),
        (replace(PURE, mamba2=replace(SIZES, groups=2)), 3, "2 mamba2 groups on 3 ranks: a rank"),
    ],
    ids=["mamba", "heads", "groups", "fewer groups than ranks"],
)
def test_what_cannot_be_cut(config, ranks, words):
    with pytest.raises(ValueError, match=words):
        placed(Seat(Layout(tp=ranks), 0), config, {}, "tp")


def test_dtensor_cuts_attention_alone():
    for config, words in (
        (HYBRID, "block 0 has mixer 'mamba2', which is not cut"),
        (replace(PURE, mixer="attention", width=32), "plan cuts MLPs; the config has mlp='none'"),
    ):
        with pytest.raises(WorkerError, match=words):
            launch(step, 2, device="cpu", config=config, strategy=DTensorParallel)

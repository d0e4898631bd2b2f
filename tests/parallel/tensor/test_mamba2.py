"""Mamba-2 cut by heads: which rows a rank has, what its norm sends, what is refused."""

from dataclasses import replace

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.bamba import bamba
from helpers.models.config import GPTConfig
from helpers.models.settings import Mamba2Settings
from helpers.parallel.tensor.placement import placed
from helpers.parallel.tensor.transform import tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.runtime.launch import launch
from helpers.state.placing import Seat

pytestmark = pytest.mark.usefixtures("kept_ranks")
SIZES = Mamba2Settings(state=3, head=8, chunk=5)
PURE = GPTConfig(
    vocab=33, context=12, width=24, layers=1, positions="none", mlp="none", mixer="mamba2",
    mamba2=SIZES,
)  # fmt: skip
HYBRID = bamba(2, [1], vocab=33, context=12, width=24, hidden=20, heads=6, kv_heads=1, mamba2=SIZES)


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

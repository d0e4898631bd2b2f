"""FSDP1 on two ranks: what each sharding holds and sends, refusals, old names."""

import re
from collections import Counter
from operator import attrgetter

import pytest
import torch
from torch.distributed.fsdp import ShardingStrategy

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import Block, GPTConfig
from helpers.parallel.libraries.fsdp1 import NAMES, Fsdp1, plain_name
from helpers.runtime.launch import launch

TINY = GPTConfig(vocab=33, context=8, width=12, layers=3, heads=2, dropout=0.2)
BATCH = random_batch(0, 7, 8, 33, ignored=0.2)
CASES = {
    "default": {},
    "kept": {"sharding": "SHARD_GRAD_OP", "layers": {Block}},
    "whole": {"sharding": ShardingStrategy.NO_SHARD, "micro_batches": 3},
    "micro-batches": {"micro_batches": 3},
    "one replica": {"sharding": "HYBRID_SHARD", "mesh": {"replicate": 1, "shard": 2}},
}


def counted(worker, mesh=None, **options) -> dict:
    """The messages of a second step, and the numbers that this rank holds."""
    mesh = make_mesh(Layout(**(mesh or {"dp": 2})))
    ours = Fsdp1(TINY, 3, mesh, **options)
    own = BATCH.shard(ours.data_rank, ours.data_size)
    ours.step(own)
    ours.evaluate(own)
    with ledger() as log:
        ours.step(own)
    calls = Counter(entry.call for entry in log.entries)
    return {
        "sent": {call: calls[call] for call in ("all_gather", "reduce_scatter")},
        "numbers": sum(p.numel() for p in ours.parameters.values()),
        "norms over": [group is mesh.group(mesh.layout.axes[-1]) for group in ours.shards],
        "data": (ours.data_rank, ours.world_size),
    }


def refused(worker) -> dict:
    mesh, found = make_mesh(Layout(dp=2)), {}
    wrong = {
        "hybrid": (mesh, {"sharding": "HYBRID_SHARD"}),
        "axes": (make_mesh(Layout(tp=2)), {}),
        "plain on two": (make_mesh(Layout(replicate=2, shard=1)), {}),
        "no shards": (make_mesh(Layout(replicate=2, shard=1)), {"sharding": "HYBRID_SHARD"}),
        "nothing": (mesh, {"layers": {torch.nn.Conv2d}}),
    }
    for name, (where, options) in wrong.items():
        try:
            Fsdp1(TINY, 3, where, **options)
        except ValueError as error:
            found[name] = str(error)
    return found


def everything(worker) -> dict:
    torch.set_num_threads(1)
    found = {name: counted(worker, **options) for name, options in CASES.items()}
    return {"cases": found, "refused": refused(worker)}


@pytest.fixture(scope="module")
def runs():
    return launch(everything, 2, device="cpu", timeout=300)


@pytest.mark.parametrize("case", CASES)
def test_its_ranks_and_the_groups_of_its_norm(runs, case):
    for rank, found in enumerate(run[case] for run in runs.column("cases")):
        assert found["data"] == (rank, 2)
        assert found["norms over"] == ([] if case == "whole" else [True])


def test_what_a_rank_holds_and_sends(runs):
    """Three blocks are gathered for the forward, and again for the backward if they are freed.

    The root stays gathered after an evaluation. Gradients are sent once in a step.
    """
    whole = sum(p.numel() for p in TINY.build().parameters())
    numbers = [sum(run[case]["numbers"] for run in runs.column("cases")) for case in CASES]
    assert numbers == [whole, whole, 2 * whole, whole, whole]
    for run in runs.column("cases"):
        sent = {case: tuple(run[case]["sent"].values()) for case in CASES}
        assert sent["default"] == sent["one replica"] == (6, 4)
        assert sent["micro-batches"][1] == sent["kept"][1] == 4
        assert sent["kept"][0] <= 4
        assert sent["micro-batches"][0] > 12  # three forwards
        assert sent["whole"] == (0, 0)


def test_wrong_requests_are_refused(runs):
    for run in runs.column("refused"):
        assert "HYBRID_SHARD needs a mesh with the axes replicate and shard" in run["hybrid"]
        assert "with the axes dp or replicate and shard only, in this order" in run["axes"]
        assert "FULL_SHARD needs a mesh with the axes dp only" in run["plain on two"]
        assert "HYBRID_SHARD with one rank along shard would train without" in run["no shards"]
        assert "wrapped no block" in run["nothing"]


def test_a_plain_name():
    wrapped = "_fsdp_wrapped_module.model.blocks.0._fsdp_wrapped_module.mlp.up.weight"
    assert plain_name(wrapped) == "blocks.0.mlp.up.weight"
    assert plain_name("model.head.model.weight") == "head.model.weight"


def test_the_old_names_exist():
    for old, new, what in NAMES:
        assert new
        assert what
        for name in re.findall(r"\b[A-Z]\w{5,}(?:\.[A-Z_]+)?", old):
            attrgetter(name)(torch.distributed.fsdp)
    table = {old.removeprefix("ShardingStrategy."): new for old, new, _ in NAMES}
    assert len(table) == len(NAMES)
    kept = "reshard_after_forward="
    assert (table["FULL_SHARD"], table["SHARD_GRAD_OP"]) == (f"{kept}True", f"{kept}False")
    assert table["HYBRID_SHARD"] == "a mesh with two axes"
    assert table["NO_SHARD"] == "DistributedDataParallel"

"""FSDP1 on two ranks: each sharding equals one process, sends what it should, and loads all.

Tolerance: 1e-12 absolute in float64; the sums over ranks add in another order.
"""

import re
from collections import Counter
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import IGNORED, random_batch
from helpers.models.gpt import Block, GPTConfig
from helpers.parallel.libraries.fsdp1 import NAMES, Fsdp1, plain_name
from helpers.parallel.libraries.fully_shard import rounding
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.runtime.launch import launch
from tests.parallel.zero.beside import apart, flat

TINY = GPTConfig(vocab=33, context=8, width=12, layers=3, heads=2, dropout=0.2)
RULE = OptimizerConfig(clip=0.05)
CASES = {
    "default": {},
    "by name": {"sharding": "SHARD_GRAD_OP", "layers": {Block}, "optimizer": RULE},
    "whole": {"sharding": ShardingStrategy.NO_SHARD, "micro_batches": 3, "optimizer": RULE},
    "micro-batches": {"micro_batches": 3, "optimizer": RULE},
    "one replica": {"sharding": "HYBRID_SHARD", "mesh": {"replicate": 1, "shard": 2}},
    "sgd, not clipped": {"optimizer": OptimizerConfig(rule="sgd", clip=None)},
}
BATCHES = [
    replace(random_batch(k, sequences, 8, 33, ignored=0.2), step=k)
    for k, sequences in enumerate([7, 5, 7, 1, 6])  # of one sequence, a rank has none
]


def beside_one_process(worker, mesh=None, **options) -> dict:
    """Differences over steps, after a load of one process's state, and of the first state again."""
    mesh = make_mesh(Layout(**(mesh or {"dp": 2})))
    ours = Fsdp1(TINY, 3, mesh, dtype=torch.float64, **options)
    one = Single(TINY, 3, dtype=torch.float64, optimizer=options.get("optimizer"))
    other = Single(TINY, 4, dtype=torch.float64, optimizer=options.get("optimizer"))
    for k in (0, 1):
        other.step(BATCHES[k])
    first, found, given_out = ours.full_state(), {"empty": first_slots(ours)}, []
    assert apart(first["model"], one.full_state()["model"]) == 0
    far = []
    for k, batch in enumerate(BATCHES):
        own = batch.shard(ours.data_rank, ours.data_size)
        if k == 2:
            for trainer in (ours, one):
                trainer.load(other.full_state())
        if k == 4:
            for trainer in (ours, one):
                trainer.load(first)
            found["emptied"] = first_slots(ours)
        lr = 0.01 if k == 1 else None
        with ledger() as log:
            mine = ours.step(own, lr=lr)
        theirs = one.step(batch, lr=lr)
        assert mine.tokens == theirs.tokens == batch.counted()
        far += [abs(float(mine.loss - theirs.loss)), abs(float(mine.grad_norm - theirs.grad_norm))]
        for gradient in ours.full_gradients().values():
            gradient.zero_()  # a copy
        gradients, state = ours.full_gradients(), ours.full_state()
        far += [apart(gradients, one.full_gradients()), *states_apart(state, one.full_state())]
        for kept in (gradients, state["model"], flat(state["optimizer"])):
            given_out.append((kept, {name: value.clone() for name, value in kept.items()}))
        evaluated, alone = ours.evaluate(own), one.evaluate(batch)
        far.append(abs(evaluated[0] - alone[0]))
        assert evaluated[1] == alone[1]
        assert ours.model.training
    empty = replace(BATCHES[0], targets=torch.full_like(BATCHES[0].targets, IGNORED))
    step = ours.step(empty.shard(ours.data_rank, 2))
    found["nothing"] = float(step.loss), float(step.grad_norm)
    calls = Counter(entry.call for entry in log.entries)
    found["sent"] = {call: calls[call] for call in ("all_gather", "reduce_scatter")}
    found["numbers"] = sum(p.numel() for p in ours.parameters.values())
    found["far"], found["copies"] = max(far), max(apart(*pair) for pair in given_out)
    found["norms over"] = [group is mesh.group(mesh.layout.axes[-1]) for group in ours.shards]
    return found | {"said": (ours.lossy, ours.bound), "data": (ours.data_rank, ours.world_size)}


def first_slots(ours) -> dict:
    return ours.full_state()["optimizer"]


def states_apart(ours, theirs):
    yield apart(ours["model"], theirs["model"])
    yield apart(flat(ours["optimizer"]), flat(theirs["optimizer"]))


def low(worker) -> dict:
    """What mixed precision says, and the number formats of a step."""
    mesh = make_mesh(Layout(dp=worker.world_size))
    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ours = Fsdp1(TINY, 3, mesh, mixed_precision=policy)
    seen = []
    ours.model.register_forward_hook(lambda *given: seen.append(given[2][0].dtype))
    ours.units[1].register_forward_hook(lambda *given: seen.append(given[2].dtype))
    ours.step(BATCHES[0].shard(worker.rank, 2))
    dtypes = {p.dtype for p in ours.parameters.values()}
    return {"said": (ours.lossy, ours.bound), "seen": seen, "dtypes": dtypes,
            "wanted": rounding(policy, torch.float32)}  # fmt: skip


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
    found = {name: beside_one_process(worker, **options) for name, options in CASES.items()}
    return {"cases": found, "low": low(worker), "refused": refused(worker)}


@pytest.fixture(scope="module")
def runs():
    return launch(everything, 2, device="cpu", timeout=300)


@pytest.mark.parametrize("case", CASES)
def test_each_sharding_equals_one_process(runs, case):
    for rank, found in enumerate(run[case] for run in runs.column("cases")):
        assert found["far"] <= 1e-12
        assert found["copies"] == 0
        assert found["empty"] == found["emptied"] == {}
        assert found["nothing"] == (0, 0)
        assert found["said"] == ("", 0.0)
        assert found["data"] == (rank, 2)
        assert found["norms over"] == ([] if case == "whole" else [True])


def test_what_a_rank_holds_and_sends(runs):
    """Three blocks are gathered for the forward, and again for the backward if they are freed.

    The root stays gathered after an evaluation. Gradients are sent once in a step.
    """
    whole = sum(p.numel() for p in TINY.build().parameters())
    numbers = [sum(run[case]["numbers"] for run in runs.column("cases")) for case in CASES]
    assert numbers == [whole, whole, 2 * whole, whole, whole, whole]
    for run in runs.column("cases"):
        sent = {case: tuple(run[case]["sent"].values()) for case in CASES}
        assert sent["default"] == sent["one replica"] == (6, 4)
        assert sent["micro-batches"][1] == sent["by name"][1] == 4
        assert sent["by name"][0] <= 4
        assert sent["micro-batches"][0] > 12  # three forwards
        assert sent["whole"] == (0, 0)


def test_mixed_precision_is_lossy(runs):
    for run in runs.column("low"):
        assert run["said"] == run["wanted"]
        assert "bfloat16" in run["said"][0]
        assert torch.bfloat16 in run["seen"]
        assert run["dtypes"] == {torch.float32}


def test_wrong_requests_are_refused(runs):
    for run in runs.column("refused"):
        assert "HYBRID_SHARD needs a mesh with the axes replicate and shard" in run["hybrid"]
        assert "FULL_SHARD needs a mesh with the axes dp only, not Layout(tp=2)" in run["axes"]
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


def hybrid_of_four(worker) -> list:
    """Two replicas of two shards, beside one process: each rank has its own share of a batch."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(replicate=2, shard=2))
    ours = Fsdp1(TINY, 3, mesh, dtype=torch.float64, sharding="HYBRID_SHARD")
    one, far = Single(TINY, 3, dtype=torch.float64), []
    for batch in BATCHES[:2]:
        mine = ours.step(batch.shard(ours.data_rank, ours.data_size))
        theirs = one.step(batch)
        far += [abs(float(mine.loss - theirs.loss)), abs(float(mine.grad_norm - theirs.grad_norm))]
    far.append(apart(ours.full_state()["model"], one.full_state()["model"]))
    return [ours.data_rank, ours.data_size, max(far)]


def test_replicas_of_shards_equal_one_process():
    for rank, (data_rank, data_size, far) in enumerate(launch(hybrid_of_four, 4, device="cpu")):
        assert (data_rank, data_size) == (rank, 4)
        assert far <= 1e-12

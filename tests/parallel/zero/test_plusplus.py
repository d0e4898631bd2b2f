"""ZeRO++: exact without quantisers; with them, numbers and bytes as planned, and a stated bound.

K nodes and L ranks of a node: "2 × 2". Every case of a number of ranks shares these ranks.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.nodes import GATHERED, REDUCED, NodesTransport
from helpers.parallel.zero.plusplus import GatheredInside, ZeroPlusPlus
from helpers.parallel.zero.stage1 import Zero1
from helpers.plans.messages import wire
from helpers.plans.slow_links import node_messages
from helpers.precision.blocks import Blocks
from helpers.runtime.launch import launch
from helpers.training.twin import compare
from tests.parallel.beside import GPT2, ODD, TOLERANCE, Case, differences, frozen, record

pytestmark = [
    pytest.mark.usefixtures("kept_ranks"),
    pytest.mark.filterwarnings("ignore:ZeRO stage"),
]
UNTIED = GPTConfig(vocab=33, context=8, width=12, layers=2, heads=2, tied=False)
AXES = partial(plain, data=("node", "local"))
INT8, INT4 = Blocks(size=16), Blocks(bits=4, size=16)
MIXED = (INT8, INT4)
QWZ, HPZ, QGZ = {"weights": INT8}, {"secondary": True}, {"gradients": (INT4, INT4)}


def nodes(k, l):  # noqa: E741
    return {"node": k, "local": l}


def recipe(transform=AXES, **options):
    return Recipe(transform=transform, owner=partial(ZeroPlusPlus, **options))


def exact(k, l, config=ODD, transform=AXES, loads=None, **rest):  # noqa: E741
    options = {name: rest.pop(name) for name in ("reshard_after_forward", "inside") if name in rest}
    made = recipe(transform, secondary=rest.pop("secondary", True), **options)
    return Case(made, config, nodes(k, l), loads=loads, **rest)


def freezing(*patterns):
    def freeze(config, seed, seat, dtype):
        placed = AXES(config, seed, seat, dtype)
        for name, p in placed.model.named_parameters():
            p.requires_grad_(not any(pattern in name for pattern in patterns))
        return placed

    return freeze


EXACT = {
    "1 × 2": exact(1, 2, micro_batches=2),
    "3 × 1, no data": exact(3, 1, sequences=2),
    "2 × 2, one shard": exact(2, 2, GPT2, secondary=False, sequences=7, loads=recipe(**HPZ)),
    "2 × 2, tied": exact(2, 2, replace(GPT2, tied=True, recompute="full"), micro_batches=2),
    "2 × 2, kept, gloo": exact(2, 2, inside=GroupTransport, reshard_after_forward=False,
                               micro_batches=2, optimizer=OptimizerConfig(clip=None),
                               loads=Recipe(transform=AXES, owner=Zero1)),
    "2 × 2, half frozen": replace(
        exact(2, 2, GPT2, freezing("attention", "norm")),
        alone=Recipe(transform=frozen("attention", "norm"))),
}  # fmt: skip


def on_new_groups(worker, case, twin):
    worker.state.mesh = None
    return differences(worker, case, twin)


@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT)
def test_it_equals_one_process(case):
    runs = launch(on_new_groups, case.ranks, device="cpu", case=case, twin=record(case))
    assert all(value <= TOLERANCE for far in runs for value in far.values()), list(runs)


# messages


def numbers_of(rank, ranks, size):
    made = torch.Generator().manual_seed(rank)
    return torch.randn(ranks, size, generator=made).exp() * (1 + rank)


MOVED = [
    ((None, None), 37, torch.float32),
    ((INT8, (INT4, INT4)), 1, torch.float32),
    ((INT8, (INT4, INT4)), 64, torch.float64),
    ((INT8, MIXED), 37, torch.float32),
]


def moved(worker, k, l):  # noqa: E741
    """What a rank gets in each case: all gathered shards, and its sum."""
    mesh, found = make_mesh(Layout(node=k, local=l)), []
    inside, between = (GroupTransport(mesh.group(axis)) for axis in ("local", "node"))
    for (weights, gradients), size, dtype in MOVED:
        transport = NodesTransport(mesh.group("node", "local"), inside, between, weights, gradients)
        own = numbers_of(worker.rank, 1, size)[0].to(dtype)
        every, total = own.new_zeros(k * l, size), torch.zeros_like(own)
        gathering = transport.all_gather(every, own)
        summing = transport.reduce_scatter(total, numbers_of(worker.rank, k * l, size).to(dtype))
        summing.wait()
        gathering.wait()
        found.append((every, total))
    return found


def rounded(row, form):
    return row if form is None else form.decode(form.encode(row), torch.empty_like(row))


@pytest.mark.parametrize(("k", "l"), [(2, 2), (1, 3), (3, 1)])
def test_every_rank_gets_the_numbers_that_were_sent(k, l):  # noqa: E741
    n = k * l
    for place, found in enumerate(launch(moved, n, device="cpu", k=k, l=l)):
        for ((weights, gradients), size, dtype), (every, total) in zip(MOVED, found, strict=True):
            for rank, got in enumerate(every):
                assert torch.equal(got, rounded(numbers_of(rank, 1, size)[0].to(dtype), weights))
            first, second = gradients or (None, None)
            there = [numbers_of(rank, n, size).to(dtype)[place] for rank in range(n)]
            sums = [sum(rounded(row, first) for row in there[i : i + l]) for i in range(0, n, l)]
            expected = sum(rounded(one, second) for one in sums)
            assert torch.allclose(total, expected, rtol=1e-5, atol=1e-5)
            if gradients:
                bound = sum(map(first.bound, there)) + sum(map(second.bound, sums))
                assert ((total - sum(there)).abs() <= bound * (1 + 1e-5)).all()
                assert size == 1 or (total - sum(there)).abs().max() > bound.max() / 20


def spoiled(worker):
    mesh = make_mesh(Layout(node=2, local=1))
    inside, between = (GroupTransport(mesh.group(axis)) for axis in ("local", "node"))
    transport = NodesTransport(mesh.group("node", "local"), inside, between, INT8, MIXED)
    every, own = torch.ones(2, 32), torch.ones(32)
    every[1, 20] = float("inf") if worker.rank == 0 else 1
    transport.reduce_scatter(own, every).wait()
    return own.isfinite().tolist()


def test_an_overflow_on_one_rank_reaches_the_sum():
    assert list(launch(spoiled, 2, device="cpu")) == [[True] * 32, [True] * 16 + [False] * 16]


# bytes


def counted(worker, k, l, ways, m):  # noqa: E741
    """Bytes along each axis in a step, and the numbers of each row."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(node=k, local=l))
    trainer = recipe(**ways)(UNTIED, 0, mesh, micro_batches=m)
    batch = random_batch(trainer.data_rank, 4, 8, UNTIED.vocab)
    trainer.step(batch)
    with ledger() as log:
        trainer.step(batch)
    calls = ("send", "all_to_all")
    found = dict.fromkeys(nodes(k, l), 0)
    for entry in log.of(*calls).entries:
        found[entry.axes or "node"] += entry.wire  # 3 × 1: the whole world is no axis
    trainer.close()
    return found, [row.row.size for row in trainer.owner.rows]


BOTH = {"gradients": MIXED}
WAYS = {
    "ZeRO-3": (2, 2, {}, 1),
    "qwZ": (3, 1, QWZ, 2),
    "hpZ and qgZ": (2, 2, HPZ | QGZ, 1),
    "ZeRO++": (2, 2, QWZ | HPZ | BOTH, 2),
    "ZeRO++, 3 × 1": (3, 1, QWZ | HPZ | BOTH, 1),
}


@pytest.mark.parametrize(("k", "l", "ways", "m"), WAYS.values(), ids=WAYS)
def test_bytes_on_each_link(k, l, ways, m):  # noqa: E741
    forms = {"weights": (8, 16)} if "weights" in ways else {}
    if "gradients" in ways:
        forms["gradients"] = tuple((form.bits, form.size) for form in ways["gradients"])
    options = forms | {"secondary": "secondary" in ways, "micro_batches": m}
    for sent, rows in launch(counted, k * l, device="cpu", k=k, l=l, ways=ways, m=m):
        planned = wire(node_messages(rows, k, l, number_bytes=4, **options))
        assert sent == {"node": 0, "local": 0} | planned


# the second shard


def second(worker, folder):
    """What the second shards have, step by step."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(node=2, local=2))
    trainer = recipe(weights=INT8, **HPZ)(UNTIED, 0, mesh)
    row = next(row for row in trainer.owner.rows if isinstance(row, GatheredInside))
    batch = random_batch(trainer.data_rank, 4, 8, UNTIED.vocab)
    found = {"before": row.second}
    saved = trainer.evaluate(batch)
    with ledger() as log:
        again = trainer.evaluate(batch)
    found["again"] = again == saved
    found["crossed"] = {e.axes for e in log.of("send").entries}
    row.second = None
    row.gather()
    row.use()
    places = row.whole.view(2, -1)[worker.rank % 2]
    found["range"] = torch.equal(row.second, places) and row.buffers[-1] is row.second
    row.free()
    found["bytes"] = row.second.nbytes == row.nbytes / 2
    trainer.save(folder)
    trainer.step(batch)
    found["after a step"] = row.second
    found["changed"] = trainer.evaluate(batch) != saved
    trainer.restore(folder)
    found["restored"] = trainer.evaluate(batch) == saved
    trainer.close()
    return found


def test_what_the_second_shard_has(tmp_path):
    """Half of the row that was gathered, until the parameters change, by a step or a load."""
    expected = {"before": None, "after a step": None}
    yes = dict.fromkeys(("again", "range", "bytes", "changed", "restored"), True)
    for run in launch(second, 4, device="cpu", folder=str(tmp_path / "saved")):
        assert run.pop("crossed") == {"local"}
        assert run == expected | yes


# the bound

SMOOTH = OptimizerConfig(eps=1e-4)  # see helpers.parallel.precision.BOUNDS
LOSSY = {
    "qwZ": (1, QWZ, "parameters are gathered in int8", GATHERED[8]),
    "qgZ": (1, QGZ, "gradients are summed in int4 inside nodes, int4 between them", REDUCED[4]),
    "all": (
        2,
        QWZ | HPZ | {"gradients": MIXED},
        "parameters are gathered in int8, and gradients are summed in int8 inside nodes, int4 "
        "between them",
        GATHERED[8] + REDUCED[4],
    ),
}


@pytest.mark.parametrize(("l", "ways", "said", "bound"), LOSSY.values(), ids=LOSSY)
def test_it_says_its_loss_and_stays_within_the_bound(l, ways, said, bound):  # noqa: E741
    given = {"config": UNTIED, "steps": 3, "dtype": torch.float32, "optimizer": SMOOTH}
    comparison = compare(recipe(**ways), layout=nodes(2, l), device="cpu", **given)
    assert comparison, comparison
    assert (comparison.lossy, comparison.bound) == (said, bound)
    assert bound / 30 < comparison.worst("relative") < bound < 1


# refusals


def refused(worker):
    mesh = make_mesh(Layout(node=2, local=2))
    inside, between = (GroupTransport(mesh.group(axis)) for axis in ("local", "node"))
    tries = [
        lambda: recipe(plain)(ODD, 0, make_mesh(Layout(dp=4))),
        lambda: recipe(partial(plain, data=("local",)))(ODD, 0, mesh),
        lambda: NodesTransport(mesh.group("local"), inside, between),
        lambda: recipe(weights=INT4)(ODD, 0, mesh),
    ]
    found = []
    for one in tries:
        with pytest.raises(ValueError, match=r"ranks|int8") as error:
            one()
        found.append(str(error.value))
    return found


def test_other_meshes_are_refused():
    for one, other, some, low in launch(refused, 4, device="cpu"):
        assert "two axes, nodes and their ranks, not over ('dp',)" in one
        assert "not over ('local',)" in other
        assert "a parameter is on 2 of the 4 ranks of all nodes" in some
        assert low == "weights in int4 hardly train: gather them in int8"
    with pytest.raises(ValueError, match=r"two axes, nodes and their ranks, not over \(\)"):
        recipe()(ODD, 0)

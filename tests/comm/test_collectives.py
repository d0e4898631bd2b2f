"""Collectives from messages, compared with PyTorch's own and with one process."""

import inspect
import time
import types

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from helpers.comm import collectives
from helpers.comm.messages import Peers
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.comm.cases import (
    ALL_REDUCES,
    COPIES,
    REDUCTIONS,
    Case,
    cases,
    one_process,
    pytorchs,
    tolerance,
)

WORLDS = range(1, 6)


@pytest.fixture(scope="module")
def clusters():
    every = {world: Cluster(world) for world in WORLDS}
    yield every
    for cluster in every.values():
        cluster.close()


def placed(case: Case, values: torch.Tensor) -> torch.Tensor:
    """Return the same numbers, in the memory layout of the case."""
    if not case.strided:
        return values.clone()
    return torch.stack([values, torch.ones_like(values)], dim=1)[:, 0]


def ours(case: Case, rank: int, group, module) -> tuple[torch.Tensor, list]:
    """Return this rank's result as one row, and the inputs that the call must not change."""
    call, place = getattr(module, case.what), case.ranks.index(rank)
    op, tensor = getattr(ReduceOp, case.op), placed(case, case.numbers(rank))
    size = case.sizes[place]
    match case.what:
        case "tree_broadcast":
            call(tensor, case.source, group)
            return tensor, []
        case "ring_reduce_scatter":
            result = placed(case, case.numbers(rank, size, part=2))
            call(result, tensor, op, group)
            return result, [(tensor, case.numbers(rank))]
        case "ring_all_gather":
            own = placed(case, case.numbers(rank, size, part=1))
            call(tensor, own, group)
            return tensor, [(own, case.numbers(rank, size, part=1))]
        case "pairwise_all_to_all":
            sent, received = case.table[place], [row[place] for row in case.table]
            parts = [case.numbers(rank, size, part=d) for d, size in enumerate(sent)]
            inputs = [placed(case, part) for part in parts]
            outputs = [placed(case, case.numbers(9, size)) for size in received]
            call(outputs, inputs, group)
            return torch.cat(outputs), list(zip(inputs, parts, strict=True))
    call(tensor, op, group)
    return tensor, []


def judge(worker, drawn: list[Case], change: tuple[str, str] | None = None, late: float = 0.0):
    """Run the cases directly one after the other, then compare the results.

    Args:
        change: a mistake to plant: a text in the source, and its replacement.
        late: scale, in seconds, of the ranks' different delays.

    Returns:
        (the errors on this rank, the bits of each result on this rank).
    """
    module = collectives if change is None else changed(*change)
    groups = vars(worker.state).setdefault("groups", {})
    for case in drawn:
        if case.ranks not in groups:
            groups[case.ranks] = dist.new_group(list(case.ranks))
    mine = [(case, groups[case.ranks]) for case in drawn if worker.rank in case.ranks]
    time.sleep(late * (3 * worker.rank % 5))
    done = [ours(case, worker.rank, group, module) for case, group in mine]
    wrong = []
    for (case, group), (result, read) in zip(mine, done, strict=True):
        right, allowed = one_process(case, worker.rank), tolerance(case, worker.rank)
        if result.dtype != case.dtype or far(result, right, allowed):
            wrong.append(f"{case}: {result} for {right}")
        if any(far(after, before) for after, before in read):
            wrong.append(f"{case}: changed an input")
        theirs = pytorchs(case, worker.rank, group)
        if theirs is not None and far(result, theirs, 2 * allowed):  # both results are rounded
            wrong.append(f"{case}: {result}, PyTorch has {theirs}")
    bits = {case: bits_of(result) for (case, _), (result, _) in zip(mine, done, strict=True)}
    return wrong, bits


def far(a: torch.Tensor, b: torch.Tensor, allowed=0.0) -> bool:
    if a.shape != b.shape:
        return True
    if not torch.as_tensor(allowed).any():
        return bits_of(a.to(b.dtype)) != bits_of(b)
    wide = torch.promote_types(b.dtype, torch.float64)
    return not bool(((a.to(wide) - b.to(wide)).abs() <= allowed).all())


def bits_of(tensor: torch.Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()


def changed(old: str, new: str) -> types.ModuleType:
    """Return the collectives with a mistake planted."""
    source = inspect.getsource(collectives)
    assert source.count(old) == 1, old
    module = types.ModuleType("changed")
    exec(source.replace(old, new), module.__dict__)
    return module


@pytest.mark.parametrize("world", WORLDS)
def test_equal_to_pytorchs_and_to_one_process(clusters, world):
    @settings(max_examples=40, deadline=None)
    @given(st.lists(cases(world), min_size=1, max_size=12))
    def check(drawn):
        runs = clusters[world].run(judge, drawn=drawn)
        assert [wrong for wrong, _ in runs] == [[]] * world
        for case in drawn:  # all ranks have the same bits, even for rounded sums
            if case.what in ALL_REDUCES:
                assert len({runs[rank][1][case] for rank in case.ranks}) == 1

    check()


def every(*groups: tuple[int, ...]) -> list[Case]:
    """Each collective with equal chunks, unequal chunks, and fewer numbers than ranks."""
    return [
        Case(what, numel, dtype, ranks, strided=strided, seed=3)
        for what in COPIES + REDUCTIONS
        for numel, dtype in ((20, torch.float32), (20, torch.int64), (3, torch.int32))
        for ranks in groups
        for strided in (False, True)
    ]


@pytest.mark.parametrize("world", [8, 9])
def test_more_ranks(world):
    drawn = every(tuple(range(world)), tuple(range(1, world)))
    assert [wrong for wrong, _ in launch(judge, workers=world, drawn=drawn)] == [[]] * world


@pytest.mark.parametrize(
    ("old", "new", "fails"),
    [
        ("(peers.rank - 2 - step)", "(peers.rank - 1 - step)", "ring_reduce_scatter"),  # off by one
        ("partial = chunks[peers.left]", "partial = chunks[peers.rank]", "ring_reduce_scatter"),
        ("        row.copy_(partial)\n", "        pass\n", "ring_reduce_scatter"),
        ("combine(coming, own, out=coming)", "coming", "ring_reduce_scatter"),
        ("going = chunks[(peers.rank - step)", "going = chunks[(peers.rank)", "ring_all_gather"),
        ("        chunks[peers.rank].copy_(in_a_row(input))\n", "", "ring_all_gather"),
        ("        distance = 1\n", "        distance = 2\n", "recursive_doubling_all_reduce"),
        ("    distance *= 2\n", "    distance *= 4\n", "recursive_doubling_all_reduce"),
        ("away = (peers.rank - source)", "away = (peers.rank)", "tree_broadcast"),
        ("        row.copy_(in_a_row(own))\n", "        pass\n", "pairwise_all_to_all"),
        ("in_a_row(inputs[to])", "in_a_row(inputs[to]) * 0", "pairwise_all_to_all"),
    ],
)  # fmt: skip
def test_a_mistake_would_be_seen(clusters, old, new, fails):
    drawn = [case for case in every((0, 1, 2, 3, 4)) if case.what == fails and case.numel == 20]
    found = [wrong for wrong, _ in clusters[5].run(judge, drawn=drawn, change=(old, new))]
    assert all(fails in line for wrong in found for line in wrong)
    assert any(found)


def test_two_in_a_row_do_not_mix(clusters):
    drawn = every((0, 1, 2, 3, 4), (1, 2, 4))
    runs = clusters[5].run(judge, drawn=drawn, late=0.02)  # no rank waits between the calls
    assert [wrong for wrong, _ in runs] == [[]] * 5


def in_order(worker):
    """A difference in place of the sum: neither commutative nor associative."""
    own, found = torch.tensor([1.0, 10.0, 100.0, 1000.0, 5.0])[worker.rank : worker.rank + 1], []
    real = collectives.reduction
    collectives.reduction = lambda op, tensor: torch.sub
    try:
        for call in (collectives.recursive_doubling_all_reduce, collectives.ring_all_reduce):
            call(tensor := own.repeat(worker.world_size))
            found.append(tensor.tolist())
    finally:
        collectives.reduction = real
    return found


def test_ranks_are_combined_in_their_order(clusters):
    """By pairs (0 - 1) - (2 - 3), or a chunk from the rank after its own around the ring."""
    for doubled, ring in clusters[4].run(in_order):
        assert doubled == [1.0 - 10 - (100 - 1000)] * 4
        assert ring == [10.0 - 100 - 1000 - 1, 100.0 - 1000 - 1 - 10,
                        1000.0 - 1 - 10 - 100, 1.0 - 10 - 100 - 1000]  # fmt: skip
    for doubled, _ in clusters[5].run(in_order):  # ranks 0 and 1 are one of the four
        assert doubled == [(1.0 - 10) - 100 - (1000 - 5)] * 5


def test_shapes_and_strides(clusters):
    def run(worker):
        n = worker.world_size
        whole = torch.arange(24.0).view(2, 3, 4)
        transposed = (whole * (worker.rank + 1)).clone().transpose(0, 2)
        collectives.ring_all_reduce(transposed)
        scalar = torch.tensor(worker.rank)
        collectives.recursive_doubling_all_reduce(scalar)
        leaf = torch.nn.Parameter(torch.full((3,), float(worker.rank)))
        collectives.tree_broadcast(leaf, src=n - 1)
        number = torch.tensor([1j * worker.rank])
        collectives.ring_all_reduce(number.conj())  # a view that PyTorch conjugates on reading
        share = torch.empty(2, 2)
        collectives.ring_reduce_scatter(share, torch.ones(n, 4).t())
        return transposed, scalar, leaf.detach(), leaf.requires_grad, number, share

    for transposed, scalar, leaf, requires_grad, number, share in clusters[4].run(run):
        assert torch.equal(transposed, (10 * torch.arange(24.0).view(2, 3, 4)).transpose(0, 2))
        assert scalar == 6
        assert torch.equal(leaf, torch.full((3,), 3.0))
        assert requires_grad
        assert number == 6j
        assert torch.equal(share, torch.full((2, 2), 4.0))


def test_what_is_not_a_number_reaches_everybody(clusters):
    def run(worker):
        bad = {1: float("nan"), 2: float("inf")}.get(worker.rank, 0.0)
        found = []
        for name in ALL_REDUCES:
            for op in (ReduceOp.SUM, ReduceOp.MAX):
                tensor = torch.tensor([0.0, bad if worker.rank == 1 else 0.0, 1.0, bad])
                getattr(collectives, name)(tensor, op)
                found.append(tensor.tolist())
        return found

    for found in clusters[3].run(run):
        for zero, nan, total, both in found:
            assert zero == 0
            assert nan != nan
            assert total in (1, 3)
            assert both != both


def sent(worker, what, numel, **kwargs):
    """Return the bytes and messages that each rank sends."""
    message, counted = Peers.message, []

    def counting(self, call, buffer, peer):
        if call is dist.isend:
            counted.append(buffer.nbytes)
        return message(self, call, buffer, peer)

    Peers.message = counting
    try:
        ours(Case(what, numel, torch.float32, tuple(range(worker.world_size)), **kwargs),
             worker.rank, None, collectives)  # fmt: skip
    finally:
        Peers.message = message
    return {"bytes": sum(counted), "messages": len(counted)}


@pytest.mark.parametrize("world", WORLDS)
def test_bytes_and_steps_are_those_of_the_papers(clusters, world):
    numel = 60 * 4  # all world sizes divide it
    whole, part = numel * 4, numel * 4 // world

    def run(what, **kwargs):
        return clusters[world].run(sent, what=what, numel=numel, **kwargs)

    for what in ("ring_reduce_scatter", "ring_all_gather"):
        assert run(what).column("bytes") == [(world - 1) * part] * world
        assert run(what).column("messages") == [world - 1] * world
    assert run("ring_all_reduce").column("bytes") == [2 * (world - 1) * part] * world
    rounds = {1: [0], 2: [1, 1], 3: [1, 2, 1], 4: [2] * 4, 5: [1, 3, 2, 2, 2]}[world]
    assert run("recursive_doubling_all_reduce").column("messages") == rounds
    by_rank = {1: [0], 2: [1, 0], 3: [2, 0, 0], 4: [2, 1, 0, 0], 5: [3, 1, 0, 0, 0]}[world]
    for source in range(world):
        copies = [by_rank[(rank - source) % world] for rank in range(world)]
        assert run("tree_broadcast", seed=source).column("bytes") == [c * whole for c in copies]


def test_bytes_of_chunks_that_differ(clusters):
    # 7 numbers over 4 ranks: chunks of 2, 2, 2, 1. Each rank sends all chunks but one.
    bytes_of = clusters[4].run(sent, what="ring_reduce_scatter", numel=7).column("bytes")
    assert bytes_of == [4 * (7 - own) for own in (2, 2, 2, 1)]
    bytes_of = clusters[4].run(sent, what="ring_all_gather", numel=7).column("bytes")
    assert bytes_of == [4 * (7 - right) for right in (2, 2, 1, 2)]
    # 2 numbers over 4 ranks: no message for an empty chunk
    runs = clusters[4].run(sent, what="ring_reduce_scatter", numel=2)
    assert runs.column("messages") == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda c: c.ring_all_reduce(torch.ones(4), ReduceOp.AVG),
            "AVG is not supported, only SUM.*divide",
        ),
        (lambda c: c.ring_all_reduce(torch.ones(4) * 1j, ReduceOp.MAX), "complex .* have no MAX"),
        (lambda c: c.ring_reduce_scatter(torch.ones(4), torch.ones(4)), "output must have 2 numbe"),
        (lambda c: c.ring_all_gather(torch.ones(4), torch.ones(2).int()), "not 2 of torch.int32"),
        (lambda c: c.pairwise_all_to_all([], [torch.ones(1)] * 2), "0 outputs for 2 ranks"),
        (lambda c: c.pairwise_all_to_all([torch.ones(1)] * 2, [torch.ones(1)] * 3), "3 inputs"),
        (
            lambda c: c.pairwise_all_to_all([torch.ones(2)] * 2, [torch.ones(3)] * 2),
            r"outputs\[\d\] must have 3 numbers of torch.float32, not 2",
        ),
        (
            lambda c: c.tree_broadcast(torch.ones(4), src=2),
            r"rank 2 cannot be .* not in the group \[0, 1\]",
        ),
    ],
)
def test_what_cannot_be(call, error):
    with Cluster(2) as cluster, pytest.raises(WorkerError, match=error):
        cluster.run(lambda worker: call(collectives))


def test_a_rank_outside_the_group_is_told(clusters):
    def run(worker):
        group = dist.new_group([0, 2])
        try:
            collectives.ring_all_reduce(tensor := torch.tensor(worker.rank + 1), group=group)
            return tensor.item()
        except ValueError as error:
            return str(error)

    assert list(clusters[3].run(run)) == [
        4,
        "rank 1 is not in this group: call this only on its ranks",
        4,
    ]

"""Collectives from messages, compared with PyTorch's own and with one process."""

import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from helpers.comm import collectives
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.comm.cases import (
    ALL_REDUCES,
    COPIES,
    REDUCTIONS,
    Case,
    bits_of,
    cases,
    wrong,
)

WORLDS = (1, 2, 3, 4, 5)


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


def ours(case: Case, rank: int, group) -> tuple[torch.Tensor, list]:
    """Return this rank's result as one row, and the inputs that the call must not change."""
    call, place = getattr(collectives, case.what), case.ranks.index(rank)
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


def judge(worker, drawn: list[Case], late: float = 0.0):
    """Run the cases directly one after the other, then compare the results.

    Args:
        late: scale, in seconds, of the ranks' different delays.

    Returns:
        (the errors on this rank, the bits of each result on this rank).
    """
    groups = vars(worker.state).setdefault("groups", {})
    for case in drawn:
        if case.ranks not in groups:
            groups[case.ranks] = dist.new_group(list(case.ranks))
    mine = [(case, groups[case.ranks]) for case in drawn if worker.rank in case.ranks]
    time.sleep(late * (3 * worker.rank % 5))
    done = [ours(case, worker.rank, group) for case, group in mine]
    pairs = list(zip(mine, done, strict=True))
    errors = [wrong(case, worker.rank, group, *result) for (case, group), result in pairs]
    return [line for lines in errors for line in lines], {
        case: bits_of(result) for (case, _), (result, _) in pairs
    }


@pytest.mark.parametrize("world", WORLDS)
def test_equal_to_pytorchs_and_to_one_process(clusters, world):
    # Not shrunk: if ranks hang, each try costs a timeout.
    @settings(max_examples=20, deadline=None, phases=[Phase.generate])
    @given(st.lists(cases(world), min_size=1, max_size=12))
    def check(drawn):
        runs = clusters[world].run(judge, drawn=drawn)
        assert [errors for errors, _ in runs] == [[]] * world
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


def test_more_ranks():
    drawn = every(tuple(range(9)), tuple(range(1, 9)))
    assert [errors for errors, _ in launch(judge, workers=9, drawn=drawn)] == [[]] * 9


def test_two_in_a_row_do_not_mix(clusters):
    drawn = every((0, 1, 2, 3, 4), (1, 2, 4))
    runs = clusters[5].run(judge, drawn=drawn, late=0.02)  # no rank waits between the calls
    assert [errors for errors, _ in runs] == [[]] * 5


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

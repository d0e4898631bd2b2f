"""Collectives through shared memory, compared with PyTorch's own and with one process."""

import gc
import random
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from helpers.comm.messages import split
from helpers.comm.shared_memory import calls as shared_calls
from helpers.comm.shared_memory import collectives as shared_collectives
from helpers.comm.shared_memory.barrier import PeerLost
from helpers.comm.shared_memory.calls import Call, Room, words
from helpers.comm.shared_memory.collectives import SharedMemory
from helpers.runtime.cluster import Cluster
from helpers.runtime.launch import launch
from tests.comm import cases
from tests.comm.cases import Case, bits_of, wrong

WORLDS = (1, 2, 3, 5)
# The name in `cases` of the collective that computes the same.
SAME = {
    "all_reduce": "ring_all_reduce",
    "reduce_scatter": "ring_reduce_scatter",
    "all_gather": "ring_all_gather",
    "broadcast": "tree_broadcast",
}
CALLS = tuple(SAME)
SMALL = 80  # bytes of a half of the scratch: one number of 16 bytes per rank
ROOM = 1000  # most numbers in a case; the bytes of shared memory are 16 times that


@pytest.fixture(scope="module")
def clusters():
    every = {world: Cluster(world) for world in WORLDS}
    yield every
    for cluster in every.values():
        cluster.close()


def drawn_cases(world: int):
    """(case, place of the buffers).

    The place is "shared", "plain", or "mixed": shared memory on some of the ranks.
    """
    places = st.sampled_from(("shared", "plain", "mixed"))
    return st.tuples(cases.cases(world, tuple(SAME.values()), ROOM), places)


class Place:
    """Gives tensors memory for a case: at new places in the shared buffer, or ordinary memory."""

    def __init__(self, arena: torch.Tensor, shared: bool, strided: bool, used: int):
        self.arena, self.shared, self.strided, self.used = arena, shared, strided, used

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        if self.strided:
            values = torch.stack([values, torch.ones_like(values)], dim=1)
        here = values.clone()
        if self.shared:
            size = values.dtype.itemsize
            start = -(-self.used // size) * size
            self.used = start + values.nbytes
            here = self.arena[start : self.used].view(values.dtype).view(values.shape)
            here.copy_(values)
        return here[:, 0] if self.strided else here


def ours(case: Case, rank: int, shared: SharedMemory, put: Place):
    """Return this rank's result as one row, and the inputs that the call must not change."""
    op, size = getattr(ReduceOp, case.op), case.sizes[case.ranks.index(rank)]
    match case.what:
        case "tree_broadcast":
            tensor = put(case.numbers(rank))
            shared.broadcast(tensor, case.source)
            return tensor, []
        case "ring_reduce_scatter":
            tensor, result = put(case.numbers(rank)), put(case.numbers(rank, size, part=2))
            shared.reduce_scatter(result, tensor, op)
            return result, [(tensor, case.numbers(rank))]
        case "ring_all_gather":
            tensor, own = put(case.numbers(rank)), put(case.numbers(rank, size, part=1))
            shared.all_gather(tensor, own)
            return tensor, [(own, case.numbers(rank, size, part=1))]
    tensor = put(case.numbers(rank))
    shared.all_reduce(tensor, op)
    return tensor, []


def judge(worker, drawn, half=None, late: float = 0.0):
    """Run the cases directly one after the other, then compare the results.

    Args:
        half: bytes of a half of the scratch; a small half needs several pieces.
        late: the longest delay of a rank after a barrier, in seconds.

    Returns:
        (the errors on this rank, the bits of each result on this rank).
    """
    whole = shared_collectives.HALF, shared_calls.BLOCK
    shared_collectives.HALF, shared_calls.BLOCK = half or whole[0], 64
    kept, done = vars(worker.state).setdefault("shared", {}), []
    try:
        for number, (case, where) in enumerate(drawn):
            key = case.ranks, half, late
            if key not in kept:
                group = dist.new_group(list(case.ranks))
                if worker.rank in case.ranks:
                    shared = SharedMemory(group)
                    if late:
                        delay(shared.room.barrier, late, random.Random(worker.rank))
                    kept[key] = group, shared, shared.empty(100 * ROOM, torch.uint8)
                else:
                    kept[key] = None
            if worker.rank in case.ranks:
                group, shared, arena = kept[key]
                inside = where == "shared" or (where == "mixed" and worker.rank % 2 == 0)
                put = Place(arena, inside, case.strided, used=number % 100 * 16)
                result, read = ours(case, worker.rank, shared, put)
                read = [(after.clone(), before) for after, before in read]
                done.append((number, case, group, result.clone(), read))
    finally:
        shared_collectives.HALF, shared_calls.BLOCK = whole
    errors = [wrong(case, worker.rank, *rest) for _, case, *rest in done]
    return [line for lines in errors for line in lines], {
        number: bits_of(result) for number, _, _, result, _ in done
    }


def delay(barrier, late: float, drawn: random.Random):
    """Let this rank sleep now and then after a barrier, before its next reads and writes."""
    wait = barrier.wait

    def delayed(doing):
        wait(doing)
        if drawn.random() < 0.4:
            time.sleep(late * drawn.random())

    barrier.wait = delayed


@pytest.mark.parametrize("world", WORLDS)
def test_equal_to_pytorchs_and_to_one_process(clusters, world):
    @settings(max_examples=20, deadline=None)
    @given(st.lists(drawn_cases(world), min_size=1, max_size=12), st.sampled_from((None, SMALL)))
    def check(drawn, half):
        runs = clusters[world].run(judge, drawn=drawn, half=half)
        assert [errors for errors, _ in runs] == [[]] * world
        for number, (case, _) in enumerate(drawn):
            if case.what == "ring_all_reduce":  # the same bits, even for rounded sums
                assert len({runs[rank][1][number] for rank in case.ranks}) == 1

    check()


SIZES = ((60, torch.float32), (61, torch.int64), (3, torch.int32), (0, torch.int8))


def every(*groups: tuple[int, ...], calls=CALLS) -> list:
    """Each collective with equal chunks, unequal chunks, fewer numbers than ranks, and none."""
    return [
        (Case(SAME[call], numel, dtype, ranks, strided=strided, seed=seed), where)
        for call in calls
        for where in ("shared", "plain", "mixed")
        for seed, (numel, dtype) in enumerate(SIZES)
        for ranks in groups
        for strided in (False, True)
    ]


@pytest.mark.parametrize("half", [None, SMALL])
def test_ranks_that_come_late(clusters, half):
    drawn = every((0, 1, 2, 3, 4), (1, 2, 4))
    runs = clusters[5].run(judge, drawn=drawn, half=half, late=0.004)
    assert [errors for errors, _ in runs] == [[]] * 5


def test_what_is_assumed_unless_you_choose(clusters):
    def run(worker):
        with SharedMemory() as shared:
            about = shared.room.half, shared.room.barrier.timeout, shared.empty(1).dtype
            shared.broadcast(tensor := torch.tensor([worker.rank + 5]))
            shared.reduce_scatter(own := torch.empty(1), torch.arange(3.0) + worker.rank)
        with SharedMemory(timeout=7) as other:
            return about, tensor.item(), own.item(), other.room.barrier.timeout

    about = 2**21, 1800, torch.float32
    assert list(clusters[3].run(run)) == [(about, 5, 3.0 * rank + 3, 7) for rank in range(3)]


def test_a_rank_s_own_chunk_may_be_the_other_buffer(clusters):
    """Seven numbers on three ranks: chunks of 3, 2 and 2."""

    def run(worker):
        found = []
        with SharedMemory() as shared:
            for where in ("shared", "plain"):
                numbers = torch.arange(7.0) + 10 * worker.rank
                row = shared.empty(7).copy_(numbers) if where == "shared" else numbers
                own = row.split([3, 2, 2])[worker.rank]
                shared.reduce_scatter(own, row)
                found.append(own.tolist())
                shared.all_gather(row, own)
                found.append(row.tolist())
        return found

    sums = [3.0 * number + 30 for number in range(7)]
    own = [sums[:3], sums[3:5], sums[5:]]
    assert list(clusters[3].run(run)) == [[part, sums] * 2 for part in own]


def in_the_scratch(worker):
    """The calls that write to this rank's scratch, though all buffers are in shared memory."""
    found = []
    with SharedMemory() as shared:
        memory, scratch = shared.empty(20), shared.room.scratch[worker.rank]
        for numel in (7, 2, 0):
            own, whole = memory[: split(numel, 3)[worker.rank]], memory[10 : 10 + numel]
            for call, buffers in (
                ("all_reduce", [whole]),
                ("reduce_scatter", [own, whole]),
                ("all_gather", [whole, own]),
                ("broadcast", [whole]),
            ):
                memory.fill_(2.5)
                scratch.fill_(1)
                getattr(shared, call)(*buffers)
                found += [(call, numel)] * bool((scratch != 1).any())
    return found


def test_what_is_in_shared_memory_is_not_copied_first(clusters):
    """Nor if a rank has no numbers."""
    assert list(clusters[3].run(in_the_scratch)) == [[]] * 3


def reduced_again(worker):
    """The same memory again: after another operation, beside ordinary memory, and as negatives."""
    rank, found = worker.rank, []
    with SharedMemory() as shared:
        row, apart = shared.empty(6), torch.empty(6)
        square = row[:4].view(2, 2)
        turns = [row, row, apart if rank == 1 else row, row, row.view(2, 3)]
        turns += [row[:4], square, square.T if rank == 1 else square]
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            for tensor in turns:
                tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + rank)
                shared.all_reduce(tensor, op)
                found.append(tensor.flatten().tolist())
        assert row[4:].tolist() == [6, 7]  # the last reduction of all numbers
        pair = shared.empty(1, torch.complex64)
        parts = pair.imag, pair.conj().imag  # the second reads the numbers as negative
        turns = [(part, ReduceOp.MAX) for part in parts]
        turns += [(one, ReduceOp.SUM) for one in (pair, pair.conj() if rank == 1 else pair)]
        for tensor, op in turns:
            pair.fill_(1j * rank)
            shared.all_reduce(tensor, op)
            found.append(tensor.tolist())
    with pytest.raises(RuntimeError, match="this shared memory is closed"):
        shared.all_reduce(row)
    return found


def test_the_same_memory_is_reduced_again(clusters):
    sizes, numbers = (6, 6, 6, 6, 6, 4, 4, 4), torch.arange(6.0)
    sums = [(3 * numbers[:size] + 3).tolist() for size in sizes]
    most = [(numbers[:size] + 2).tolist() for size in sizes]
    assert list(clusters[3].run(reduced_again)) == [[*sums, *most, [2.0], [0.0], [3j], [1j]]] * 3


def called_apart(worker, call):
    row, rank = torch.ones(6), worker.rank
    op = (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN)[rank]
    with SharedMemory() as shared:
        given = {"all_reduce": (op,), "reduce_scatter": (row, op), "broadcast": (rank,)}[call]
        first = torch.empty(2) if call == "reduce_scatter" else row
        with pytest.raises(ValueError, match=f"rank {rank} calls {call} of 24 bytes"):
            getattr(shared, call)(first, *given)


@pytest.mark.parametrize("call", ["all_reduce", "reduce_scatter", "broadcast"])
def test_ranks_that_call_with_another_operation_or_source_are_told(clusters, call):
    clusters[3].run(called_apart, call=call)


def freed(worker):
    gc.disable()
    shared = SharedMemory()
    shared.all_reduce(tensor := shared.empty(8))
    segments = weakref.ref(shared.room.segments)
    del shared, tensor
    return segments() is None


def test_what_is_kept_for_later_calls_is_freed_without_the_collector():
    assert list(launch(freed, 2, device="cpu")) == [True, True]


def failures(worker, where):
    room, rank = Room(None, 30.0, 48), worker.rank
    row, puts = room.segments.allocate(8, "a number")[rank].view(torch.float64), []
    how = {"starts": (0,), "put": puts.append}
    told = []
    with pytest.raises(ValueError, match="needs a tensor on the CPU, not on meta"):
        Call(room, "this", torch.ones(1, device="meta"), 8, **how)
    with pytest.raises(
        ValueError, match=f"rank {rank} calls this of 8 bytes, torch.float64, [012],"
    ):
        Call(room, "this", row, 8, rank, **how).__enter__()
    if rank == 1 and where == "at its beginning":
        room.rows = lambda *_: 1 / 0
    for name in ("this", "that"):
        try:
            with Call(
                room, name, row if name == "this" else torch.ones(1, dtype=torch.float64), 8, **how
            ) as c:
                if rank == 1:
                    1 / 0  # noqa: B018
                c.meet()
        except (ZeroDivisionError, PeerLost, RuntimeError) as error:
            told.append(f"{type(error).__name__}: {error}")
    return told, puts


@pytest.mark.parametrize("where", ["at its beginning", "within it"])
def test_a_call_that_fails_on_a_rank_is_over_on_all(where):
    runs = launch(failures, 3, device="cpu", where=where)
    later = "RuntimeError: that of 8 bytes, torch.float64 cannot run: an earlier call in this sha"
    for rank, (told, puts) in enumerate(runs):
        if rank == 1:
            assert told[0].startswith("ZeroDivisionError")
        else:
            lost = "PeerLost: rank 1 has failed, and did not reach the end of a collective"
            assert told[0] == lost
        assert told[1].startswith(later)
        assert puts == []  # nothing is written to a scratch that others may still read


def test_a_call_in_words():
    f32 = torch.float32
    assert words("gather", 12, f32, "") == "gather of 12 bytes, torch.float32"
    assert (
        words("reduce", 8, torch.float64, ReduceOp.MAX) == "reduce of 8 bytes, torch.float64, MAX"
    )
    assert words("send", 4, f32, "from rank 2") == "send of 4 bytes, torch.float32, from rank 2"
    assert words("send", 4, f32, 0) == "send of 4 bytes, torch.float32, 0"

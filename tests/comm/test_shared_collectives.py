"""Collectives through shared memory, compared with PyTorch's own and with one process."""

import inspect
import random
import time
import types

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from helpers.comm import shared_calls, shared_collectives, shared_combine
from helpers.comm.shared_collectives import SharedMemory
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.comm.cases import (
    COMPLEX,
    FLOATS,
    NO_ARITHMETIC,
    OPS,
    WHOLE,
    Case,
    one_process,
    pytorchs,
    tolerance,
)

WORLDS = range(1, 6)
# The name in `cases` of the collective that computes the same.
SAME = {
    "all_reduce": "ring_all_reduce",
    "reduce_scatter": "ring_reduce_scatter",
    "all_gather": "ring_all_gather",
    "broadcast": "tree_broadcast",
}
CALLS = tuple(SAME)
MADE_OF = (shared_combine, shared_calls, shared_collectives)  # each imports from those before it
SMALL = 80  # bytes of a half of the scratch: one number of 16 bytes per rank
ROOM = 1000  # most numbers in a case; the bytes of shared memory are 16 times that


@pytest.fixture(scope="module")
def clusters():
    every = {world: Cluster(world) for world in WORLDS}
    yield every
    for cluster in every.values():
        cluster.close()


@st.composite
def cases(draw, world: int):
    """(case, place of the buffers).

    The place is "shared", "plain", or "mixed": shared memory on some of the ranks.
    """
    call = draw(st.sampled_from(CALLS))
    copies = call in ("all_gather", "broadcast")
    dtype = draw(st.sampled_from(FLOATS + COMPLEX + WHOLE + (NO_ARITHMETIC if copies else ())))
    ops = OPS[:2] if dtype.is_complex else OPS[:4] if dtype.is_floating_point else OPS
    some = st.sets(st.integers(0, world - 1), min_size=1).map(sorted).map(tuple)
    case = Case(
        what=SAME[call],
        numel=draw(st.integers(0, 2 * world) | st.integers(0, ROOM)),
        dtype=dtype,
        ranks=draw(st.just(tuple(range(world))) | some),
        op=draw(st.sampled_from(ops)),
        strided=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )
    return case, draw(st.sampled_from(("shared", "plain", "mixed")))


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


def judge(worker, drawn, half=None, change: tuple[str, str] | None = None, late: float = 0.0):
    """Run the cases directly one after the other, then compare the results.

    Args:
        half: bytes of a half of the scratch; a small half needs several pieces.
        change: a mistake to plant: a text in the source, and its replacement.
        late: the longest delay of a rank after a barrier, in seconds.

    Returns:
        (the errors on this rank, the bits of each result on this rank).
    """
    module = shared_collectives if change is None else changed(*change)
    module.HALF, whole = half or module.HALF, module.HALF
    kept = vars(worker.state).setdefault("shared", {})
    done = []
    try:
        for number, (case, where) in enumerate(drawn):
            key = case.ranks, half, change, late
            if key not in kept:
                group = dist.new_group(list(case.ranks))
                if worker.rank in case.ranks:
                    shared = module.SharedMemory(group)
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
        module.HALF = whole
    wrong, bits = [], {}
    for number, case, group, result, read in done:
        right, allowed = one_process(case, worker.rank), tolerance(case, worker.rank)
        if result.dtype != case.dtype or far(result, right, allowed):
            wrong.append(f"{case}: {result} for {right}")
        if any(far(after, before) for after, before in read):
            wrong.append(f"{case}: changed an input")
        theirs = pytorchs(case, worker.rank, group)
        if theirs is not None and far(result, theirs, 2 * allowed):  # both results are rounded
            wrong.append(f"{case}: {result}, PyTorch has {theirs}")
        bits[number] = bits_of(result)
    return wrong, bits


def delay(barrier, late: float, drawn: random.Random):
    """Let this rank sleep now and then after a barrier, before its next reads and writes."""
    wait = barrier.wait

    def delayed(doing):
        wait(doing)
        if drawn.random() < 0.4:
            time.sleep(late * drawn.random())

    barrier.wait = delayed


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
    """Return the collectives with a mistake planted in them, or in a module that they use."""
    sources = {lower: inspect.getsource(lower) for lower in MADE_OF}
    assert sum(source.count(old) for source in sources.values()) == 1, old
    own = {}
    for lower, source in sources.items():
        module = types.ModuleType(lower.__name__)
        exec(source.replace(old, new), module.__dict__)
        # Replace what it imports from those before it by their changed version, too.
        vars(module).update({name: own[name] for name in own if name in vars(module)})
        own |= {name: vars(module)[name] for name in vars(module) if defined(lower, name)}
    return module


def defined(module: types.ModuleType, name: str) -> bool:
    return getattr(getattr(module, name, None), "__module__", None) == module.__name__


@pytest.mark.parametrize("world", WORLDS)
def test_equal_to_pytorchs_and_to_one_process(clusters, world):
    @settings(max_examples=25, deadline=None)
    @given(st.lists(cases(world), min_size=1, max_size=12), st.sampled_from((None, SMALL)))
    def check(drawn, half):
        runs = clusters[world].run(judge, drawn=drawn, half=half)
        assert [wrong for wrong, _ in runs] == [[]] * world
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
    assert [wrong for wrong, _ in runs] == [[]] * 5


MEET = "                call.meet()\n"
DEEP = "    " + MEET
RETURN = "                    return\n"
MISSING = {  # a barrier: (text before, the barrier's line, text after)
    "all_reduce: before": (
        "                self.first = self.put(start)\n",
        "                self.meet()\n",
        "",
    ),
    "all_reduce: after": ("in_blocks(slots[rank][rank]), own])\n", DEEP, ""),
    "all_reduce: end": ("  # no other rank uses these numbers\n", DEEP, RETURN),
    "reduce_scatter: end": ("call.chunks(), [in_blocks(result)])\n", DEEP, RETURN),
    "all_gather: end": ("result[other].copy_(call.rows[other])\n", DEEP, RETURN),
    "broadcast: end": ("row.copy_(call.rows[source])\n", DEEP, RETURN),
}
WRONG = {  # (text in the source, its replacement)
    "one half of the scratch": ("room.turn = room.segments.turn = room.turn ^ 1", "pass"),
    "always the same half": ("part.view(2, self.half)[self.turn]", "part.view(2, self.half)[0]"),
    "views of the other half": ('("halves", self.turn, dtype)', '("halves", dtype)'),
    "chunks of another size": ('("slots", self.turn, numel, dtype)', '("slots", self.turn, dtype)'),
    "chunks of another place": (
        "self.places, self.sizes, self.dtype), make",
        "self.sizes, self.dtype), make",
    ),
    "the first piece again": ("if number or mixed:", "if mixed:"),
    "those in shared memory lay nothing out": ("if number or mixed:", "if number:"),
    "a source left out": ("for block in blocks[:-1]:", "for block in blocks[:-2]:"),
    "a target left out": ("for target in more:", "for target in more[1:]:"),
    "the slot, not the chunk": (
        "sources[rank] = own = in_blocks(mine[rank])",
        "own = in_blocks(mine[rank])",
    ),
    "the rank's own chunk": ("result[rank].copy_(row)", "pass"),
    "the first as the source": (
        "source, room = ranks.index(src), self.room",
        "source, room = 0, self.room",
    ),
    "sizes of another rank": ("end = offset + sizes[rank]", "end = offset + sizes[0]"),
    "one rank's place": (
        "if ELSEWHERE not in self.places:",
        "if ELSEWHERE not in self.places[:1]:",
    ),
}


def told(drawn: list, change: tuple[str, str], late: float):
    changed(*change)  # here: a change that is not possible is no error of a rank
    try:
        runs = launch(judge, workers=3, drawn=drawn, half=SMALL, change=change, late=late)
    except WorkerError:
        return True
    return any(wrong for wrong, _ in runs)


@pytest.mark.parametrize("barrier", MISSING)
def test_a_barrier_that_is_missing_would_be_seen(barrier):
    drawn = every((0, 1, 2), calls=[barrier.partition(":")[0]])
    before, line, behind = MISSING[barrier]
    assert told(drawn, (before + line + behind, before + behind), late=0.01)


def test_none_is_seen_without_a_mistake():
    assert not told(every((0, 1, 2)), ("self.turn = 0  # which half", "self.turn = 1"), late=0.002)


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_would_be_seen(mistake):
    assert told(every((0, 1, 2)), WRONG[mistake], late=0.002)


def test_peers_of_an_ordinary_tensor_are_refused(clusters):
    def ask(worker):
        with SharedMemory() as shared:
            shared.peers(torch.ones(3))

    with pytest.raises(WorkerError, match=r"not in this shared memory: allocate it with empty"):
        clusters[1].run(ask)


def test_a_rank_that_fails_within_a_call_leaves_it(clusters):
    """The others would wait for it."""

    def fail(worker):
        with SharedMemory() as shared:
            row = shared.empty(3)
            with (
                pytest.raises(ZeroDivisionError),
                shared_calls.Call(shared.room, "a call", row, 12, starts=(), put=None),
            ):
                1 / 0  # noqa: B018
            shared.barrier()

    with pytest.raises(WorkerError, match="an earlier call in this shared memory failed"):
        clusters[1].run(fail)


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

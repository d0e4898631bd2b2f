"""Transports: the same sums and shards over a group, directly, and through shared memory."""

import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from helpers.comm.ledger import ledger
from helpers.comm.regions import sum_scattered
from helpers.comm.transport import (
    DirectTransport,
    GroupTransport,
    Messages,
    SharedTransport,
    coalesced,
    replicate,
)
from helpers.runtime.launch import launch

linux = pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")
KINDS = [GroupTransport, DirectTransport, pytest.param(SharedTransport, marks=linux)]
pytestmark = pytest.mark.usefixtures("kept_ranks")


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=20), st.integers(1, 200))
def test_neighbours_of_one_kind_travel_together(shapes, most):
    tensors = [torch.zeros(n, dtype=torch.float64 if wide else torch.int8) for n, wide in shapes]
    groups = coalesced(tensors, most)
    assert [id(t) for group in groups for t in group] == [id(t) for t in tensors]
    for group in groups:
        assert len({t.dtype for t in group}) == 1
        assert len(group) == 1 or sum(t.nbytes for t in group) <= most
    for group, (first, *_) in itertools.pairwise(groups):  # as few groups as possible
        full = sum(t.nbytes for t in group) + first.nbytes > most
        assert full or group[0].dtype != first.dtype


def test_small_tensors_travel_together_up_to_16_mib():
    four_mib = torch.empty(2**20, dtype=torch.float32, device="meta")
    assert [len(group) for group in coalesced([four_mib] * 5)] == [4, 1]
    assert [len(group) for group in coalesced([four_mib, torch.empty(1), four_mib])] == [1, 1, 1]


def numbers(rank, size):
    """(N, 2, 5): what a rank has for every rank."""
    return torch.arange(10.0 * size, dtype=torch.float64).view(size, 2, 5) + 1000 * rank


def every_call(worker, kind, group=None):
    """All calls, all under way at once, in the transport's own buffers and in others."""
    transport, results, works = kind(group), [], []
    rank, size = transport.rank, transport.size
    for of_transport in (True, False):

        def room(*shape, own=of_transport):
            numel = torch.Size(shape).numel()
            row = transport.empty(numel, torch.float64, torch.device("cpu")) if own else None
            return (torch.empty(numel, dtype=torch.float64) if row is None else row).view(shape)

        given = numbers(rank, size)
        total, parts, in_place = (room(size, 2, 5).copy_(given) for _ in range(3))
        part, mine, every = room(2, 5), room(2, 5).copy_(given[0]), room(size, 2, 5)
        again = room(size, 2, 5)
        again[rank] = given[0]
        works += [
            transport.all_reduce(total.view(-1)),
            transport.reduce_scatter(part, parts),
            transport.all_gather(every, mine),
            transport.reduce_scatter(in_place[rank], in_place),
            transport.all_gather(again, again[rank]),
        ]
        results.append((total, part, every, in_place[rank], again))
    for work in works * 2:  # the second wait returns at once
        work.wait()
    copied = [[result.clone() for result in some] for some in results]
    transport.close()
    return copied


def check_calls(found, rank, size):
    given = [numbers(r, size) for r in range(size)]
    total, every = sum(given), torch.stack([own[0] for own in given])
    for some in found:
        wanted = total, total[rank], every, total[rank], every
        for result, expected in zip(some, wanted, strict=True):
            assert torch.equal(result, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_sums_and_shards(workers, kind):
    for rank, found in enumerate(launch(every_call, workers, device="cpu", kind=kind)):
        check_calls(found, rank, workers)


def in_a_group(worker, kind):
    """The last three of four ranks; the group's rank 0 is the world's rank 1."""
    group = dist.new_group([1, 2, 3])
    if worker.rank == 0:
        with pytest.raises(ValueError, match="rank 0 is not in this group"):
            kind(group)
        return None
    found, transport = every_call(worker, kind, group), kind(group)
    largest, mine = torch.tensor([1.0, -1.0]) * worker.rank, torch.full((2,), float(worker.rank))
    transport.maximum(largest).wait()
    transport.broadcast(mine, 1)
    received, sent = torch.empty(3, 2), torch.arange(6.0).view(3, 2) + 10 * transport.rank
    transport.all_to_all(received, sent).wait()
    if kind is SharedTransport:
        failed = transport.all_gather(torch.empty(3, 3), torch.empty(2))
        with pytest.raises(ValueError, match="input must have 3 numbers"):
            failed.wait()
    transport.close()
    return found, largest.tolist(), mine.tolist(), received.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_count_within_the_group(kind):
    nothing, *runs = launch(in_a_group, 4, device="cpu", kind=kind)
    assert nothing is None
    for rank, (found, largest, mine, received) in enumerate(runs):
        check_calls(found, rank, 3)
        assert (largest, mine) == ([3.0, -1.0], [2.0, 2.0])
        assert received == [[10 * s + 2 * rank, 10 * s + 2 * rank + 1] for s in range(3)]


def recorded(worker, kind, backend):
    """NCCL has calls of its own; here gloo makes them."""
    real = dist.get_backend
    dist.get_backend = lambda group: backend
    try:
        with ledger() as log:
            found = every_call(worker, kind)
    finally:
        dist.get_backend = real
    return found, [(row["call"], row["calls"], row["payload"], row["wire"]) for row in log.rows()]


@pytest.mark.parametrize(
    ("kind", "backend", "scatter"),
    [
        (GroupTransport, "gloo", "all_to_all"),  # its own reduce-scatter sends twice as much
        (GroupTransport, "nccl", "reduce_scatter"),
        (DirectTransport, "nccl", "reduce_scatter"),
        (DirectTransport, "gloo", "send"),
    ],
)
def test_calls_and_bytes_of_each_backend(kind, backend, scatter):
    row = 10 * 8  # bytes of one rank's part
    runs = launch(recorded, 3, device="cpu", kind=kind, backend=backend)
    for rank, (found, rows) in enumerate(runs):
        check_calls(found, rank, 3)
        calls = {call: rest for call, *rest in rows}
        assert calls.pop("all_reduce") == [2, 2 * 3 * row, 2 * 2 * 2 * row]
        if scatter == "send":  # the bytes of a ring, for four calls in each of two turns
            assert calls == {"send": [16, 16 * row, 16 * row], "recv": [16, 16 * row, 0]}
        else:
            assert calls["all_gather"] == [4, 4 * 3 * row, 4 * 2 * row]
            assert calls[scatter][:2] == [4, 4 * 3 * row]


def test_every_message_is_waited_for():
    """Also what this rank sends: its buffer may change afterwards."""
    waited = []
    works = [SimpleNamespace(wait=lambda n=n: waited.append(n)) for n in range(4)]
    Messages(works, lambda: waited.append("the end")).wait()
    assert waited == [0, 1, 2, 3, "the end"]


def memory_of_both(worker):
    plain, shared = GroupTransport(), SharedTransport()
    lasting = plain.lasting, shared.lasting
    room = plain.empty(3, torch.int64, torch.device("meta"))
    assert (room.shape, room.dtype, room.is_meta) == ((3,), torch.int64, True)
    tensors = [torch.tensor([worker.rank + 5]), torch.ones(2) * worker.rank, torch.zeros(1)]
    plain.broadcast(tensors[0])
    replicate(tensors[1:], plain)
    assert [tensor[0].item() for tensor in tensors] == [5, 0, 0]  # from rank 0
    buffer = shared.empty(5, torch.int64, torch.device("cpu"))
    shared.thread.submit(shared.shared.barrier).result()
    place = shared.shared.room.segments.locate(buffer)
    shared.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        shared.all_reduce(buffer)
    with pytest.raises(RuntimeError, match="closed"):
        shared.shared.barrier()
    return lasting, buffer.dtype, place is not None


@linux
def test_memory_for_the_other_ranks_lasts_until_the_end():
    expected = (False, True), torch.int64, True
    assert list(launch(memory_of_both, 2, device="cpu")) == [expected] * 2


def test_all_calls_through_shared_memory_are_of_one_thread_in_their_order():
    """Also the allocations: all ranks make them together with the collectives."""
    made = []

    def note(name):
        return lambda *given: made.append((name, given, threading.get_ident())) or "memory"

    names = ("empty", "all_reduce", "all_gather", "reduce_scatter")
    transport = object.__new__(SharedTransport)
    transport.shared = SimpleNamespace(**{name: note(name) for name in names})
    with ThreadPoolExecutor(1) as transport.thread:
        first = transport.all_reduce(1)
        assert transport.empty(5, torch.int64, torch.device("cpu")) == "memory"
        for work in (first, transport.all_gather(1, 2), transport.reduce_scatter(3, 4)):
            work.wait()
    expected = [("all_reduce", (1,)), ("empty", (5, torch.int64))]
    expected += [("all_gather", (1, 2)), ("reduce_scatter", (3, 4))]
    assert [(name, given) for name, given, _ in made] == expected
    (thread,) = {ident for *_, ident in made}
    assert thread != threading.get_ident()


def alike(worker, source):
    drawn = torch.Generator().manual_seed(worker.rank)
    tensors = [
        torch.randn(3, 4, generator=drawn, dtype=torch.float64).t(),  # not contiguous
        torch.randn(2, generator=drawn, dtype=torch.float64),  # travels with it
        torch.randint(9, (5,), generator=drawn),
        torch.randn(0),
        torch.randn((), generator=drawn, requires_grad=True),
        torch.randn(3, generator=drawn),
    ]
    before = [tensor.detach().clone() for tensor in tensors]
    replicate(tensors, GroupTransport(), source)
    return [tensor.detach() for tensor in tensors], before


@pytest.mark.parametrize("source", [0, 2])
def test_replicas_are_those_of_the_source(source):
    runs = launch(alike, 3, device="cpu", source=source)
    for tensors, _ in runs:
        assert all(torch.equal(a, b) for a, b in zip(tensors, runs[source][1], strict=True))


def one_sequence(worker, kind):
    x = torch.arange(12.0).view(1, 4, 3) * (worker.rank + 1)
    transport = kind()
    got = sum_scattered(x, transport).wait()
    transport.close()
    return got


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_one_sequence_are_summed(kind):
    """A dimension of size 1: its stride says nothing, and differs between views."""
    parts = launch(one_sequence, workers=2, kind=kind, device="cpu")
    assert torch.equal(torch.cat(list(parts), 1), 3 * torch.arange(12.0).view(1, 4, 3))

"""Transports: the same sums by a process group and through shared memory; replicas made alike."""

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
from helpers.comm.transport import GroupTransport, SharedTransport, coalesced, replicate
from helpers.runtime.launch import launch

linux = pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")
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


def sums(worker, kind):
    transport = kind()
    buffers = [transport.empty(n, torch.float64, torch.device("cpu")) for n in (5, 1000, 3)]
    for i, buffer in enumerate(buffers):
        buffer.copy_(torch.arange(len(buffer)) + 100 * worker.rank + i)
    works = [transport.all_reduce(buffer) for buffer in buffers]  # all under way at once
    plain = torch.full((7,), float(worker.rank))  # not the transport's own
    works.append(transport.all_reduce(plain))
    for work in works:
        work.wait()
    copied = [buffer.clone() for buffer in (*buffers, plain)]
    transport.close()
    return copied


@linux
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shared_memory_gives_the_group_s_sums(workers):
    group = launch(sums, workers, device="cpu", kind=GroupTransport)
    shared = launch(sums, workers, device="cpu", kind=SharedTransport)
    for ours, theirs in zip(shared, group, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    ranks = sum(range(workers))
    assert shared[0][0].tolist() == [workers * i + 100 * ranks for i in range(5)]


def shards(worker, kind):
    """Gather and reduce-scatter, all under way at once, in buffers of both kinds."""
    transport, results, works = kind(), [], []
    sizes = [6, 6 * worker.world_size, 6 * worker.world_size, 6]
    of_transport = [transport.empty(n, torch.float64, torch.device("cpu")) for n in sizes]
    plain = [torch.empty(n, dtype=torch.float64) for n in sizes]
    for buffers in (plain, of_transport):
        own, every, parts, total = (buffer.view(-1, 2, 3) for buffer in buffers)
        own.copy_(torch.arange(6).view(1, 2, 3) + 100 * worker.rank)
        parts.copy_(torch.arange(parts.numel()).view_as(parts) * (worker.rank + 1))
        works.append(transport.all_gather(every, own[0]))
        works.append(transport.reduce_scatter(total[0], parts))
        results += [every, total[0]]
    for work in works:
        work.wait()
    copied = [result.clone() for result in results]
    transport.close()
    return copied


@linux
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shared_memory_gives_the_group_s_shards(workers):
    group = launch(shards, workers, device="cpu", kind=GroupTransport)
    shared = launch(shards, workers, device="cpu", kind=SharedTransport)
    for rank, (ours, theirs) in enumerate(zip(shared, group, strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        every, total = ours[:2]
        assert every[:, 0, 0].tolist() == [100.0 * k for k in range(workers)]
        assert total[0, 0] == 6 * rank * sum(range(workers + 1))


def scattered(worker, backend):
    real = dist.get_backend
    dist.get_backend = lambda group: backend
    try:
        own, every = torch.empty(2, 3), torch.arange(18.0).view(3, 2, 3) * (worker.rank + 1)
        with ledger() as log:
            GroupTransport().reduce_scatter(own, every).wait()
    finally:
        dist.get_backend = real
    return own.tolist(), [(entry.call, entry.payload) for entry in log.entries]


@pytest.mark.parametrize(("backend", "call"), [("gloo", "all_to_all"), ("nccl", "reduce_scatter")])
def test_gloo_scatters_by_an_all_to_all(backend, call):
    """Its own reduce-scatter sends twice as much."""
    sums = (6 * torch.arange(18.0).view(3, 2, 3)).tolist()  # 1 + 2 + 3 times
    runs = launch(scattered, 3, device="cpu", backend=backend)
    assert list(runs) == [(own, [(call, 72)]) for own in sums]


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
        works = [first, transport.all_gather(1, 2), transport.reduce_scatter(3, 4)]
        for work in works:
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
    replicate(tensors, GroupTransport(), source)
    return [tensor.detach() for tensor in tensors]


def in_a_group(worker, kind):
    """Calls of two of three ranks; the group's rank 0 is the world's rank 1."""
    group = dist.new_group([1, 2])
    if worker.rank == 0:
        with pytest.raises(ValueError, match="rank 0 is not in this group"):
            kind(group)
        return None
    transport = kind(group)
    largest, mine = torch.tensor([1.0, -1.0]) * worker.rank, torch.full((2,), float(worker.rank))
    transport.maximum(largest).wait()
    transport.broadcast(mine, 1)
    failed = (
        transport.all_gather(torch.empty(2, 3), torch.empty(2)) if kind is SharedTransport else None
    )
    if failed:
        with pytest.raises(ValueError, match="input must have 3 numbers"):
            failed.wait()
    transport.close()
    return largest.tolist(), mine.tolist()


@linux
@pytest.mark.parametrize("kind", [GroupTransport, SharedTransport])
def test_ranks_count_within_the_group(kind):
    expected = ([2.0, -1.0], [2.0, 2.0])
    assert list(launch(in_a_group, 3, device="cpu", kind=kind)) == [None, expected, expected]


@pytest.mark.parametrize("source", [0, 2])
def test_replicas_are_those_of_the_source(source):
    runs = launch(alike, 3, device="cpu", source=source)
    own = launch(alike, 1, device="cpu", source=0)[0] if source == 0 else None
    for tensors in runs:
        assert all(torch.equal(a, b) for a, b in zip(tensors, runs[source], strict=True))
        if own:
            assert all(torch.equal(a, b) for a, b in zip(tensors, own, strict=True))
    drawn = torch.Generator().manual_seed(source)
    assert torch.equal(runs[1][0], torch.randn(3, 4, generator=drawn, dtype=torch.float64).t())

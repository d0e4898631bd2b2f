"""Direct messages give the results of the group's own collectives."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.comm import direct
from helpers.comm.direct import Arrivals, DirectTransport
from helpers.comm.ledger import ledger
from helpers.comm.transport import GroupTransport, SharedTransport
from helpers.runtime.launch import launch
from tests.comm.test_transport import linux
from tests.comm.threads import on_threads

pytestmark = pytest.mark.usefixtures("kept_ranks")


def shards(worker, kind, dtype, group=None):
    """Gather and reduce-scatter rows, also in place, and several at a time."""
    transport = kind(group)
    rank, size = transport.rank, transport.size
    every = torch.arange(5 * size).view(size, 5).to(dtype) + 100 * rank
    own, gathered = every.new_empty(5), torch.empty_like(every)
    in_place, part = every.clone(), every[rank].clone()
    works = [
        transport.reduce_scatter(own, every),
        transport.all_gather(gathered, part),
        transport.reduce_scatter(in_place[rank], in_place),
    ]
    for work in works:
        work.wait()
    again = torch.zeros_like(every)
    again[rank] = in_place[rank]
    transport.all_gather(again, again[rank]).wait()
    transport.close()
    return own, gathered, in_place[rank], again


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_same_as_the_group_s_collectives(workers, dtype):
    direct, group = (
        launch(shards, workers, device="cpu", kind=kind, dtype=dtype)
        for kind in (DirectTransport, GroupTransport)
    )
    for ours, theirs in zip(direct, group, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            # bf16: small whole numbers up to 456 are rounded, the sums once or twice
            assert torch.allclose(a, b, rtol=0 if dtype is torch.float64 else 2**-7, atol=0)


@linux
def test_shared_memory_gathers_and_scatters_too():
    shared, group = (
        launch(shards, 3, device="cpu", kind=kind, dtype=torch.float64)
        for kind in (SharedTransport, GroupTransport)
    )
    for ours, theirs in zip(shared, group, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def in_a_group(worker):
    """The last three of four ranks; the group's rank 0 is the world's rank 1."""
    group = dist.new_group([1, 2, 3])
    if worker.rank == 0:
        return None
    own, gathered, _, again = shards(worker, DirectTransport, torch.float64, group)
    return own.tolist(), gathered[:, 0].tolist(), again[:, 0].tolist()


def test_ranks_count_within_the_group():
    sums = [[3.0 * k + 300 for k in range(5 * r, 5 * r + 5)] for r in range(3)]
    firsts = [row[0] for row in sums]
    expected = [(own, [0.0, 105.0, 210.0], firsts) for own in sums]
    assert list(launch(in_a_group, 4, device="cpu")) == [None, *expected]


def on_nccl(worker):
    """NCCL has calls of its own for both; here gloo makes them."""
    real = dist.get_backend
    dist.get_backend = lambda group: "nccl"
    try:
        with ledger() as log:
            results = shards(worker, DirectTransport, torch.float64)
    finally:
        dist.get_backend = real
    return [entry.call for entry in log.entries], results


def test_other_backends_use_their_own_calls():
    group = launch(shards, 3, device="cpu", kind=GroupTransport, dtype=torch.float64)
    for (calls, ours), theirs in zip(launch(on_nccl, 3, device="cpu"), group, strict=True):
        assert calls == ["reduce_scatter", "all_gather", "reduce_scatter", "all_gather"]
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def sent(worker):
    transport, every = DirectTransport(), torch.ones(worker.world_size, 7)
    with ledger() as log:
        transport.all_gather(every, every[worker.rank]).wait()
        transport.reduce_scatter(every[0].clone(), every).wait()
    return log.wire, len(log.of("send").entries)


def test_it_sends_the_bytes_of_a_ring():
    for wire, messages in launch(sent, 3, device="cpu"):
        assert wire == 2 * 2 * 7 * 4
        assert messages == 4


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_which_row_goes_where(monkeypatch, size):
    """In threads. A message is on its way until it is waited for."""

    def body(peers):
        def isend(tensor, *, group, group_dst):
            assert group is peers
            peers.exchange(send=tensor, to=group_dst)
            return SimpleNamespace(wait=lambda: None)

        def irecv(buffer, *, group, group_src):
            assert buffer.is_contiguous()
            take = lambda: peers.exchange(receive=buffer, source=group_src)  # noqa: E731
            return SimpleNamespace(wait=take)

        here.dist = SimpleNamespace(isend=isend, irecv=irecv, get_backend=lambda group: "gloo")
        transport = object.__new__(DirectTransport)
        transport.group, transport.rank, transport.size = peers, peers.rank, size
        rank, found = peers.rank, []
        every = torch.arange(4.0 * size).view(size, 4) + 100 * rank
        for own in (torch.empty(4), every[rank]):
            transport.reduce_scatter(own, every).wait()
            found.append(own.tolist())
        again = torch.full((size, 4), -1.0)
        for own, number in ((torch.empty(4), 7.0), (again[rank], 3.0)):
            transport.all_gather(again, own.fill_(number + rank)).wait()
            found.append(again[:, 0].tolist())
        return found, [to for to, _ in peers.sent]

    here = threading.local()
    monkeypatch.setattr(direct, "dist", SimpleNamespace(
        isend=lambda *given, **options: here.dist.isend(*given, **options),
        irecv=lambda *given, **options: here.dist.irecv(*given, **options),
        get_backend=lambda group: here.dist.get_backend(group),
    ))  # fmt: skip
    for rank, (found, sent) in enumerate(on_threads(size, body)):
        summed = [size * (4.0 * rank + k) + 100 * sum(range(size)) for k in range(4)]
        ranks = range(size)
        assert found == [summed, summed, [7.0 + r for r in ranks], [3.0 + r for r in ranks]]
        assert sent == [(rank + step) % size for step in range(1, size)] * 4


def test_every_message_is_waited_for():
    """Also what this rank sends: its buffer may change afterwards."""
    waited = []
    works = [SimpleNamespace(wait=lambda n=n: waited.append(n)) for n in range(4)]
    Arrivals(works).wait()
    assert waited == [0, 1, 2, 3]

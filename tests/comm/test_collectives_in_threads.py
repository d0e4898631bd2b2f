"""Each collective without processes: exact results, and which rank sends how much to which."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import ReduceOp

from helpers.comm import collectives
from tests.comm.threads import on_threads

SIZES = range(1, 7)
WORLD = [10, 13, 11, 19, 12, 15]  # the world's number of each rank of the group


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """In a thread, `Peers(group)` are those of the thread."""
    here = threading.local()

    def peers_of(group):
        assert group == "a group"
        return here.peers

    monkeypatch.setattr(collectives, "Peers", peers_of)
    return here


def each(here, size, body):
    """[(what the body returned, the messages that the rank sent)]."""

    def rank(peers):
        here.peers = peers
        return body(peers.rank), peers.sent

    return on_threads(size, rank)


def split(numel: int, size: int) -> list[int]:
    return [len(range(rank, numel, size)) for rank in range(size)]


def row(rank: int, numel: int) -> torch.Tensor:
    """Whole numbers, of which no two ranks have the same at a place."""
    return torch.arange(numel, dtype=torch.float64) ** 2 + 1000 * (rank + 1)


@pytest.mark.parametrize("numel", [0, 2, 5, 12])
@pytest.mark.parametrize("size", SIZES)
def test_a_reduce_scatter(threads, size, numel):
    chunks = split(numel, size)

    def body(rank):
        given, own = row(rank, numel), torch.full((chunks[rank],), -1.0, dtype=torch.float64)
        collectives.ring_reduce_scatter(own, given, ReduceOp.MAX, "a group")
        assert torch.equal(given, row(rank, numel))
        return own

    expected = row(size - 1, numel).split(chunks)
    for rank, (own, sent) in enumerate(each(threads, size, body)):
        assert torch.equal(own, expected[rank])
        steps = [chunks[(rank - 1 - step) % size] for step in range(size - 1)]
        assert sent == [((rank + 1) % size, some) for some in steps if some]


@pytest.mark.parametrize("numel", [0, 2, 5, 12])
@pytest.mark.parametrize("size", SIZES)
def test_an_all_gather(threads, size, numel):
    chunks = split(numel, size)
    parts = [row(rank, some) for rank, some in enumerate(chunks)]

    def body(rank):
        whole = torch.full((numel,), -1.0, dtype=torch.float64)
        collectives.ring_all_gather(whole, parts[rank], "a group")
        return whole

    for rank, (whole, sent) in enumerate(each(threads, size, body)):
        assert torch.equal(whole, torch.cat(parts))
        steps = [chunks[(rank - step) % size] for step in range(size - 1)]
        assert sent == [((rank + 1) % size, some) for some in steps if some]


@pytest.mark.parametrize("call", ["ring_all_reduce", "recursive_doubling_all_reduce"])
@pytest.mark.parametrize("numel", [0, 2, 7])
@pytest.mark.parametrize("size", SIZES)
def test_an_all_reduce(threads, call, size, numel):
    def body(rank):
        found = []
        for op in (ReduceOp.SUM, ReduceOp.MIN):
            getattr(collectives, call)(tensor := row(rank, numel), op, "a group")
            found.append(tensor)
        getattr(collectives, call)(tensor := row(rank, numel), group="a group")
        assert torch.equal(tensor, found[0])  # a sum, unless you choose
        return found

    total = sum(row(rank, numel) for rank in range(size))
    for (added, least), _ in each(threads, size, body):
        assert torch.equal(added, total)
        assert torch.equal(least, row(0, numel))


@pytest.mark.parametrize(
    ("size", "partners"),
    [
        (2, [[1], [0]]),
        (3, [[1], [2, 0], [1]]),
        (4, [[1, 2], [0, 3], [3, 0], [2, 1]]),
        (6, [[1], [3, 4, 0], [3], [1, 5, 2], [5, 1], [4, 3]]),
    ],
)
def test_the_partners_of_recursive_doubling(threads, size, partners):
    def body(rank):
        collectives.recursive_doubling_all_reduce(row(rank, 3), ReduceOp.SUM, "a group")

    found = [[to for to, _ in sent] for _, sent in each(threads, size, body)]
    assert found == partners


@pytest.mark.parametrize("numel", [0, 3])
@pytest.mark.parametrize("size", SIZES)
def test_a_broadcast(threads, monkeypatch, size, numel):
    ranks = WORLD[:size]
    fake = SimpleNamespace(get_process_group_ranks=lambda group: ranks)
    monkeypatch.setattr(collectives, "dist", fake)
    for source in range(size):

        def body(rank, source=source):
            collectives.tree_broadcast(tensor := row(rank, numel), ranks[source], "a group")
            return tensor

        found = each(threads, size, body)
        assert all(torch.equal(tensor, row(source, numel)) for tensor, _ in found)
        for rank, (_, sent) in enumerate(found):
            away = (rank - source) % size
            steps = [2**k for k in range(3) if away < 2**k < size - away]
            assert sent == [((rank + step) % size, numel) for step in steps if numel]

    ranks = [5, 0, 7, 8, 9, 3][:size]

    def from_rank_0(rank):
        collectives.tree_broadcast(tensor := row(rank, numel), group="a group")
        return tensor

    if size > 1:
        found = each(threads, size, from_rank_0)
        assert all(torch.equal(tensor, row(1, numel)) for tensor, _ in found)

    def elsewhere(rank):
        collectives.tree_broadcast(torch.ones(1), 17, "a group")

    with pytest.raises(ValueError, match=rf"rank 17 cannot be the source: .* \[{ranks[0]}"):
        each(threads, size, elsewhere)


@pytest.mark.parametrize("size", SIZES)
def test_an_all_to_all(threads, size):
    """Rank s has s + 2 d numbers for rank d; rank 0 has none for itself."""

    def body(rank):
        inputs = [row(10 * rank + d, rank + 2 * d) for d in range(size)]
        outputs = [torch.zeros(s + 2 * rank, dtype=torch.float64) for s in range(size)]
        collectives.pairwise_all_to_all(outputs, inputs, "a group")
        return outputs

    for rank, (outputs, sent) in enumerate(each(threads, size, body)):
        for s, output in enumerate(outputs):
            assert torch.equal(output, row(10 * s + rank, s + 2 * rank))
        order = [(rank + step) % size for step in range(1, size)]
        assert sent == [(d, rank + 2 * d) for d in order if rank + 2 * d]

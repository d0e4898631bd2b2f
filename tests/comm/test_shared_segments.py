"""Shared memory: what it is, what is left of it, and what is said when it cannot be."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.comm.ledger import ledger
from helpers.comm.shared_memory import segments as shared_segments
from helpers.comm.shared_memory.calls import VIEWS
from helpers.comm.shared_memory.collectives import SharedMemory
from helpers.runtime.cluster import Cluster

SUM, MAX, AVG = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3) as cluster:
        yield cluster


def left() -> tuple[int, int]:
    """Open descriptors, and mappings of shared memory, of this process."""
    with open("/proc/self/maps") as file:
        mapped = file.read()
    named = [line for line in mapped.splitlines() if not line.endswith("(deleted)")]
    assert "/dev/shm/" not in "".join(named)  # nothing has a name that could be left there
    return len(os.listdir("/proc/self/fd")), mapped.count("/memfd:helpers-shared")


def test_nothing_is_left(cluster):
    def run(worker):
        found = [left()]
        for _ in range(3):
            with SharedMemory() as shared:
                shared.empty((1,) * 200)  # its text is longer than its slot
                tensors = [shared.empty(10_000), shared.empty(0), shared.empty((3, 5), torch.bool)]
                shared.all_reduce(tensors[0])
                during = left()
            del tensors, shared
            found.append(left())
        group = SharedMemory(dist.group.WORLD)  # and when nobody closes it
        tensor = group.empty(3)
        del group
        return found, during, tensor.tolist(), left()

    for found, during, tensor, forgotten in cluster.run(run):
        assert len(set(found)) == 1
        assert found[0][1] == 0
        assert during[1] > 0
        assert tensor == [0, 0, 0]
        assert forgotten == (found[0][0], 1)  # the one tensor that is still held


def test_memory_can_be_mapped_until_every_rank_has_mapped_it(cluster):
    """One rank comes late: the others must not close their descriptors before."""

    def run(worker):
        mapped = shared_segments.map_shared

        def late(*given):
            time.sleep(0.1)
            return mapped(*given)

        if worker.rank == 2:
            shared_segments.map_shared = late
        try:
            with SharedMemory() as shared:
                tensor = shared.empty(3)
                shared.all_reduce(tensor.fill_(worker.rank))
        finally:
            shared_segments.map_shared = mapped
        return tensor.tolist()

    assert list(cluster.run(run)) == [[3, 3, 3]] * 3


def test_a_rank_that_is_interrupted_tells_the_others(monkeypatch):
    """They wait for it at the barrier behind the mapping."""

    def interrupted(*_):
        raise KeyboardInterrupt

    told = []
    segments = object.__new__(shared_segments.Segments)
    segments.rank, segments.pids = 0, [os.getpid()]
    segments.barrier = SimpleNamespace(give_up=lambda: told.append("given up"))
    segments.agree = lambda what, place: (place,)
    monkeypatch.setattr(shared_segments, "map_shared", interrupted)
    before = left()
    with pytest.raises(KeyboardInterrupt):
        segments.allocate(8, "empty")
    assert told == ["given up"]
    assert left() == before


def test_memory_that_is_short_leaves_no_descriptor(monkeypatch):
    def short(*_):
        raise OSError("no memory left")

    before = left()
    monkeypatch.setattr(os, "posix_fallocate", short)
    with pytest.raises(OSError, match="no memory left"):
        shared_segments.create(1)
    assert left() == before


def test_after_its_end(cluster):
    def run(worker):
        with SharedMemory() as shared:
            tensor = shared.empty(4)
        tensor += 1  # it is a tensor as any other now
        with pytest.raises(RuntimeError, match="closed"):
            shared.all_reduce(tensor)
        with pytest.raises(RuntimeError, match="closed"):
            shared.empty(4)
        shared.close()  # a second time
        return tensor.tolist()

    assert list(cluster.run(run)) == [[1, 1, 1, 1]] * 3


def test_calls_that_differ_are_told_to_all(cluster):
    def run(worker):
        one = worker.rank == 1
        found = []
        with SharedMemory() as shared:
            for call in (
                lambda: shared.all_reduce(torch.ones(4 + one)),
                lambda: shared.all_reduce(torch.ones(4), MAX if one else SUM),
                lambda: shared.all_reduce(torch.ones(4).int() if one else torch.ones(4)),
                lambda: shared.barrier() if one else shared.all_reduce(torch.ones(4)),
                lambda: shared.broadcast(torch.ones(4), src=int(one)),
                lambda: shared.empty(4 + one),
            ):
                try:
                    call()
                    found.append("nothing")
                except ValueError as error:
                    found.append(str(error))
            shared.all_reduce(tensor := torch.ones(2))  # none of them did any harm
        return found, tensor.tolist(), left()

    for rank, (found, tensor, _) in enumerate(cluster.run(run)):
        assert tensor == [3, 3]
        for text in found:
            assert text.startswith(f"the ranks differ: rank {rank} calls ")
            assert f"rank {0 if rank == 1 else 1} calls " in text
        assert "all_reduce of 16 bytes, torch.float32, SUM" in found[0]
        assert "all_reduce of 20 bytes, torch.float32, SUM" in found[0]


def test_ranks_of_a_group_are_named_as_in_the_world(cluster):
    def run(worker):
        pair = dist.new_group([1, 2])
        if worker.rank == 0:
            return None
        found = []
        with SharedMemory(pair) as shared:
            about = shared.rank, shared.size, shared.room.segments.pids[shared.rank] == os.getpid()
            try:
                shared.broadcast(torch.ones(4), src=worker.rank)
            except ValueError as error:
                found.append(str(error))
        real, shared_segments.where = shared_segments.where, lambda: (worker.rank, 0)
        try:
            SharedMemory(pair)
        except ValueError as error:
            found.append(str(error))
        finally:
            shared_segments.where = real
        return about, found

    said = "rank {0} calls broadcast of 16 bytes, torch.float32, from rank {0}"
    calls = [said.format(rank) for rank in (1, 2)]
    away = "ranks 1 and 2 are not on one machine"
    assert list(cluster.run(run)) == [
        None,
        ((0, 2, True), [f"the ranks differ: {calls[0]}, {calls[1]}", away]),
        ((1, 2, True), [f"the ranks differ: {calls[1]}, {calls[0]}", away]),
    ]


def test_what_cannot_be(cluster):
    def run(worker):
        pair = dist.new_group([0, 2])
        with SharedMemory() as shared:
            with pytest.raises(ValueError, match="needs a tensor on the CPU, not on meta"):
                shared.all_reduce(torch.ones(3, device="meta"))
            with pytest.raises(ValueError, match="output must have 1 numbers"):
                shared.reduce_scatter(torch.ones(2), torch.ones(3))
            with pytest.raises(ValueError, match="AVG is not supported, only SUM"):
                shared.all_reduce(torch.ones(3), AVG)
            with pytest.raises(ValueError, match=r"rank 3 cannot be .* \[0, 1, 2\]"):
                shared.broadcast(torch.ones(3), src=3)
            shared.all_reduce(tensor := torch.ones(2))
        if worker.rank == 1:
            with pytest.raises(ValueError, match="rank 1 is not in this group"):
                SharedMemory(pair)
        place, create = shared_segments.where, os.memfd_create
        try:
            shared_segments.where = lambda: (0, 0, 0, int(worker.rank == 1))
            with pytest.raises(ValueError, match="ranks 0 and 1 are not on one machine"):
                SharedMemory()
            del os.memfd_create
            with pytest.raises(OSError, match="needs Linux"):
                SharedMemory()
        finally:
            shared_segments.where, os.memfd_create = place, create
        return tensor.tolist()

    assert list(cluster.run(run)) == [[3, 3]] * 3


def test_the_ledger_counts_payload_and_no_wire(cluster):
    def run(worker):
        with SharedMemory() as shared:
            tensor, part = shared.empty(30), torch.ones(10)
            with ledger() as log:
                shared.all_reduce(tensor)
                shared.all_reduce(part)
                shared.reduce_scatter(part, tensor)
                shared.all_gather(tensor, part)
                shared.broadcast(tensor)
        return [(e.call, e.ranks, e.rank, e.payload, e.wire) for e in log.entries], log.kernel

    for rank, (entries, kernel) in enumerate(cluster.run(run)):
        assert entries == [
            (call, 3, rank, payload, 0)
            for call, payload in (
                ("all_reduce", 120),
                ("all_reduce", 40),
                ("reduce_scatter", 120),
                ("all_gather", 120),
                ("broadcast", 120),
            )
        ]
        assert kernel in (0, None)  # nothing went through a socket


def test_a_namespace_of_its_own_is_another_place():
    ask = "from helpers.comm.shared_memory.segments import where; print(*where())"
    apart = ["unshare", "--user", "--pid", "--fork", sys.executable, "-c", ask]
    there = subprocess.run(apart, capture_output=True, text=True, check=False)
    if there.returncode:
        pytest.skip(f"no namespaces here: {there.stderr.strip()[-80:]}")
    here = [str(number) for number in shared_segments.where()]
    assert there.stdout.split()[:2] == here[:2]
    assert there.stdout.split() != here


def test_views_are_kept_for_some_calls_and_not_for_all(cluster):
    def run(worker):
        with SharedMemory() as shared:
            buffer = shared.empty(1000)
            for start in range(2 * VIEWS):
                buffer.fill_(1)
                shared.barrier()
                shared.all_reduce(buffer[start : start + 5])
                assert buffer.sum() == 1000 + 5 * 2
                assert buffer[start : start + 5].eq(3).all()
            few = len(shared.room.views)
            for _ in range(3):
                shared.all_reduce(buffer[:5])
            return few, len(shared.room.views) - few

    for few, more in cluster.run(run):
        assert few <= VIEWS
        assert more <= 2  # for three calls of one kind


def test_a_tensor_is_found_in_the_segment_that_holds_it_whole():
    """One segment may begin where another ends."""
    segments = object.__new__(shared_segments.Segments)
    row = torch.arange(100, dtype=torch.uint8)
    first = row.data_ptr()
    segments.bounds = [(first, first + 40), (first + 40, first + 90)]
    found = [
        segments.locate(row[a:b]) for a, b in ((0, 40), (40, 90), (50, 60), (30, 50), (95, 99))
    ]
    assert found == [(0, 0), (1, 0), (1, 10), None, None]

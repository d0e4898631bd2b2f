"""Which error the waiting ranks get when a rank is killed, ends, fails, stops or is late."""

import itertools
import math
import os
import pickle
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.comm.shared_memory import barrier as shared_barrier
from helpers.comm.shared_memory import collectives as shared_collectives
from helpers.comm.shared_memory import segments as shared_segments
from helpers.comm.shared_memory.barrier import Barrier, Left, PeerLost
from helpers.comm.shared_memory.collectives import SharedMemory
from helpers.comm.shared_memory.semaphores import Semaphore
from tests.comm.killable import PATIENCE, Killable

LOST = "PeerLost: rank {} has ended (process {}), "


def reduce_for_ever(rank, say, where):
    with SharedMemory() as shared:
        plain = torch.ones(300_001)
        tensor = {"shared": shared.empty(300_001), "plain": plain}[where]
        say("ready")
        while True:
            shared.all_reduce(tensor)
            tensor.fill_(1)


@pytest.mark.parametrize(("where", "size"), [("shared", 3), ("plain", 3), ("plain", 4)])
def test_all_survivors_name_the_killed_rank(tmp_path, where, size):
    drawn = random.Random(size + len(where))
    victim = drawn.randrange(size)
    with Killable(tmp_path, size, reduce_for_ever, where) as ranks:
        assert [ranks.hear(rank) for rank in range(size)] == ["ready"] * size
        for process in ranks.processes:  # no memory has a name that could remain in /dev/shm
            mapped = Path(f"/proc/{process.pid}/maps").read_text()
            assert "/memfd:helpers-shared (deleted)" in mapped
            assert "/dev/shm/" not in mapped
        time.sleep(0.05 * drawn.random())
        ranks.signal(victim)
        named = LOST.format(victim, ranks.processes[victim].pid)
        heard = [ranks.hear(rank) for rank in range(size) if rank != victim]
        assert [text[: len(named)] for text in heard] == [named] * (size - 1)


def one_is_killed_and_one_comes_last(rank, say, victim, last, others_have_ended):
    shared = SharedMemory()
    shared.barrier()
    barrier = shared.room.barrier
    if rank == victim:  # in the middle of a barrier: only one rank got its signal
        barrier.tell[last].post()
        os.kill(os.getpid(), signal.SIGKILL)
    while rank == last and not others_have_ended.exists():
        time.sleep(0.01)
    for place in ("one barrier", "the next"):
        barrier.wait(place)


@pytest.mark.parametrize("victim", [0, 3])
def test_a_survivor_that_has_left_is_not_blamed(tmp_path, victim):
    """The last survivor arrives after the others have noticed the death, and have ended too.

    It has the signals of all ranks for the first of two barriers, and of none for the second.
    """
    # `last` looks for the ranks of `first` before it looks for the victim
    last, *first = [(victim + away) % 4 for away in (1, 2, 3)]
    flag = tmp_path / "ended"
    with Killable(tmp_path, 4, one_is_killed_and_one_comes_last, victim, last, flag) as ranks:
        named = LOST.format(victim, ranks.processes[victim].pid)
        assert all(ranks.hear(rank).startswith(named) for rank in first)
        for rank in first:
            ranks.processes[rank].join(PATIENCE)
        flag.touch()
        assert ranks.hear(last).startswith(named)


def one_is_late(rank, say):
    """Rank 0 waits for rank 1 only briefly; rank 2 would wait longer."""
    shared = SharedMemory(timeout=0.2 if rank == 0 else PATIENCE)
    shared.barrier()
    if rank == 1:
        say("late")
        time.sleep(1.5)
    for _ in range(2):  # rank 1 passes the first of these: the others reached it
        shared.barrier()


def test_who_waits_in_vain_is_not_blamed(tmp_path):
    with Killable(tmp_path, 3, one_is_late) as ranks:
        assert ranks.hear(0).startswith("TimeoutError: rank 1 did not reach barrier within 0.2 s")
        assert ranks.hear(2).startswith("TimeoutError: rank 1 was too late, ")
        assert ranks.hear(1) == "late"
        assert ranks.hear(1).startswith("PeerLost: rank 0 has waited too long for this rank")


def one_does_not_come(rank, say, how):
    shared = SharedMemory(timeout=0.3 if how == "late" else PATIENCE)
    shared.barrier()
    if rank != 1:
        shared.barrier()
    if how == "ended":
        os._exit(0)
    if how == "closed":
        shared.close()
    time.sleep(PATIENCE)  # it stays alive


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("ended", "PeerLost: rank 1 has ended"),
        ("closed", "PeerLost: rank 1 has closed its shared memory"),
        ("late", "TimeoutError: rank 1 did not reach barrier within 0.3 s"),
    ],
)
def test_one_does_not_come(tmp_path, how, told):
    with Killable(tmp_path, 3, one_does_not_come, how) as ranks:
        for rank in (0, 2):
            assert ranks.hear(rank).startswith(told)


def one_fails(rank, say, where):
    shared = SharedMemory()
    tensor = shared.empty(3)
    if rank == 1 and where == "at its beginning":
        shared.room.rows = lambda *_: 1 / 0
    if rank == 1 and where == "in its middle":
        shared_collectives.combined = lambda *_: 1 / 0
    try:
        shared.all_reduce(tensor)
    except (ZeroDivisionError, PeerLost) as error:
        say(f"{type(error).__name__}: {error}")
    try:
        shared.all_reduce(tensor)
    except RuntimeError as error:
        say(str(error))
    time.sleep(PATIENCE)  # it stays alive


@pytest.mark.parametrize("where", ["at its beginning", "in its middle"])
def test_one_fails_and_lives(tmp_path, where):
    with Killable(tmp_path, 3, one_fails, where) as ranks:
        assert ranks.hear(1).startswith("ZeroDivisionError")
        for rank in (0, 2):
            assert ranks.hear(rank).startswith("PeerLost: rank 1 has failed")
        assert all("an earlier call" in ranks.hear(rank) for rank in range(3))


def one_leaves_at_once(rank, say):
    """Rank 2 signals rank 1 first: rank 1 has ended while rank 0 still waits."""
    shared = SharedMemory()
    shared.barrier()
    if rank == 2:
        barrier = shared.room.barrier
        barrier.others, tell = [1, 0], barrier.tell[0]
        barrier.tell[0] = type("Slow", (), {"post": lambda self: (time.sleep(0.4), tell.post())})()
    shared.barrier()
    return "done"


def test_a_rank_may_end_when_it_is_done(tmp_path):
    with Killable(tmp_path, 3, one_leaves_at_once) as ranks:
        assert [ranks.hear(rank) for rank in (1, 2, 0)] == ["done"] * 3


def test_a_rank_that_stops_is_waited_for(tmp_path):
    with Killable(tmp_path, 2, reduce_a_while) as ranks:
        assert [ranks.hear(rank) for rank in range(2)] == ["ready"] * 2
        ranks.signal(1, signal.SIGSTOP)
        assert not ranks.pipes[0].poll(0.5)
        ranks.signal(1, signal.SIGCONT)
        assert [ranks.hear(rank) for rank in range(2)] == ["done"] * 2


def reduce_a_while(rank, say):
    with SharedMemory() as shared:
        tensor = shared.empty(1000)
        say("ready")
        until = time.monotonic() + 0.3
        going = torch.ones(1)
        while going.item():  # rank 1 ends the loop
            shared.all_reduce(tensor)
            going.fill_(rank != 1 or time.monotonic() < until)
            shared.broadcast(going, src=1)
    return "done"


def in_a_thread(rank, say):
    """Rank 1 arrives only after a signal from another thread of the rank that waits for it."""
    shared_barrier.TICK = 2 * PATIENCE  # it sleeps without waking up to check
    shared = SharedMemory()
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.full((3,), rank + 1.0)
    if rank == 1:
        store.wait(["come"])
        shared.all_reduce(tensor)
    else:
        thread = threading.Thread(target=shared.all_reduce, args=(tensor,))
        thread.start()
        time.sleep(0.2)  # the other thread is waiting now
        store.set("come", "")
        thread.join()
    return str(tensor.tolist())


def test_other_threads_run_while_one_waits(tmp_path):
    with Killable(tmp_path, 2, in_a_thread) as ranks:
        assert [ranks.hear(rank) for rank in range(2)] == ["[3.0, 3.0, 3.0]"] * 2


def one_is_killed_before_its_memory_is_mapped(rank, say):
    shared = SharedMemory()
    map_shared = shared_segments.map_shared
    shared.barrier()

    def mapped(pid, fd, nbytes):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        barrier = shared.room.barrier
        while pid == barrier.pids[1] and not barrier.has_ended(1):
            time.sleep(0.01)
        return map_shared(pid, fd, nbytes)

    shared_segments.map_shared = mapped
    shared.empty(1000)


def test_a_rank_killed_while_the_others_map_its_memory_is_named(tmp_path):
    with Killable(tmp_path, 3, one_is_killed_before_its_memory_is_mapped) as ranks:
        for rank in (0, 2):
            assert ranks.hear(rank).startswith(LOST.format(1, ranks.processes[1].pid))


def of_one_process(size, names, timeout=PATIENCE, pids=None, ranks=(0,)):
    """Barriers of some ranks, all in this process and in the same memory."""
    memory = torch.zeros(Barrier.nbytes(size), dtype=torch.uint8)
    pids = pids or [os.getpid()] * size
    return [Barrier(memory, rank, size, pids, names, timeout) for rank in ranks]


def test_a_process_that_nobody_asked_how_it_ended_has_ended():
    other = subprocess.Popen(["sleep", "100"])
    [barrier] = of_one_process(2, [4, 7], pids=[os.getpid(), other.pid])
    barrier.init()
    assert not barrier.has_ended(1)
    other.kill()
    with pytest.raises(PeerLost, match=f"rank 7 has ended .process {other.pid}.") as caught:
        barrier.wait("this")
    assert caught.value.rank == 7
    assert other.returncode is None  # it was a zombie until now
    other.wait()
    barrier.close()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(PeerLost, match="rank 7 has ended"):
        of_one_process(3, [4, 5, 7], pids=[os.getpid(), os.getpid(), other.pid])
    assert len(os.listdir("/proc/self/fd")) == before


def test_each_missing_rank_is_looked_at():
    before = len(os.listdir("/proc/self/fd"))
    for failed in (1, 2, 3):
        [barrier] = of_one_process(4, [4, 5, 6, 7])
        barrier.look([1, 2, 3], "this", until=math.inf)
        barrier.gone[failed] = Left.FAILED
        with pytest.raises(PeerLost, match=f"rank {4 + failed} has failed"):
            barrier.look([1, 2, 3], "this", until=math.inf)
        barrier.close()
    assert len(os.listdir("/proc/self/fd")) == before
    ranks = of_one_process(3, [0, 1, 2], ranks=range(3))
    for barrier in ranks:
        barrier.init()
    ranks[2].give_up()
    with pytest.raises(PeerLost, match="rank 2 has failed"):
        ranks[0].wait("this")  # rank 1 lives, and does not come


def test_a_rank_that_lives_is_waited_for_as_long_as_the_timeout_says(monkeypatch):
    """Each look at the clock is a second."""
    looks = itertools.count()
    monkeypatch.setattr(shared_barrier, "TICK", 1e-4)
    monkeypatch.setattr(shared_barrier, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    [barrier] = of_one_process(2, [4, 7], timeout=20.0)
    barrier.init()
    Semaphore(barrier.heard[1].at.value).init()
    with pytest.raises(TimeoutError, match="rank 7 did not reach this within 20 s"):
        barrier.wait("this")
    assert next(looks) == 1 + 20 + 1  # the first said until when
    with pytest.raises(RuntimeError, match="that cannot run: an earlier call in this shared mem"):
        barrier.wait("that")
    barrier.close()
    with pytest.raises(RuntimeError, match="an earlier call"):  # the first reason stays
        barrier.check("that")


def test_all_late_ranks_are_named_and_those_that_were_heard_are_not():
    [barrier] = of_one_process(4, [3, 5, 6, 8], timeout=2.5)
    for other in barrier.heard:
        other.init()
    barrier.heard[2].post()
    assert not barrier.has_ended(0)  # this rank itself
    with pytest.raises(TimeoutError, match=r"^rank 5, rank 8 did not reach this within 2\.5 s"):
        barrier.look([1, 2, 3], "this", until=-math.inf)
    assert (Left(barrier.gone[0] & 7), barrier.gone[0] >> 3) == (Left.LATE, 1)
    barrier.look([2], "this", until=-math.inf)
    barrier.gone[2] = Left.CLOSED  # after it had reached the barrier
    barrier.look([2], "this", until=math.inf)
    barrier.close()


@pytest.fixture(scope="module")
def zombie():
    other = subprocess.Popen(["sleep", "100"])
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    yield other.pid
    other.wait()


@pytest.mark.parametrize(
    ("left", "written", "kind", "blamed", "text"),
    [
        # the end of a process is certain; then failed, closed
        ([2, 3, 1], {2: Left.CLOSED, 3: Left.FAILED}, PeerLost, 1,
         "5 has ended (process {}), and did"),
        ([2, 3], {2: Left.CLOSED, 3: Left.FAILED}, PeerLost, 3, "7 has failed, and did"),
        ([2], {2: Left.CLOSED}, PeerLost, 2, "6 has closed its shared memory, and did"),
        # rank 2 missed rank 3, which missed rank 1
        ([2], {2: Left.LOST + 8 * 3, 3: Left.LOST + 8 * 1}, PeerLost, 1,
         "5 has ended (process {}), so rank 6 did"),
        ([2], {2: Left.LATE + 8 * 3}, TimeoutError, 3, "7 was too late, so rank 6 did"),
        ([2], {2: Left.LATE + 8 * 1}, PeerLost, 1, "5 has ended (process {}), so rank 6 did"),
        # rank 2 waited in vain for this rank, and rank 3 for rank 2
        ([3], {2: Left.LATE + 8 * 0, 3: Left.LOST + 8 * 2}, PeerLost, 3,
         "7 has waited too long for this rank, and did"),
    ],
)  # fmt: skip
def test_of_several_that_left_the_one_to_blame_is_named(zombie, left, written, kind, blamed, text):
    [barrier] = of_one_process(
        4, [4, 5, 6, 7], pids=[os.getpid(), zombie, os.getpid(), os.getpid()]
    )
    for rank, word in written.items():
        barrier.gone[rank] = word
    error = barrier.lost(left, "this")
    assert type(error) is kind
    assert str(error) == f"rank {text.format(zombie)} not reach this"
    reason = Left.LATE if kind is TimeoutError else Left.LOST
    assert (Left(barrier.gone[0] & 7), barrier.gone[0] >> 3) == (reason, blamed)
    assert kind is TimeoutError or error.rank == 4 + blamed
    barrier.close()


@pytest.mark.parametrize("missing", ["pidfd_open", "sem_clockwait"])
def test_an_older_system_is_refused(monkeypatch, missing):
    """Linux before 5.3 has no pidfd_open, glibc before 2.30 no sem_clockwait."""
    if missing == "pidfd_open":
        monkeypatch.delattr(os, missing)
    else:
        monkeypatch.setattr("helpers.comm.shared_memory.semaphores.sleeping", SimpleNamespace())
    memory = torch.zeros(Barrier.nbytes(1), dtype=torch.uint8)
    with pytest.raises(OSError, match=r"needs Linux 5\.3 with glibc 2\.30, or later"):
        Barrier(memory, 0, 1, [os.getpid()], names=[0], timeout=PATIENCE)


def test_the_error_travels():
    error = pickle.loads(pickle.dumps(PeerLost("rank 3 has ended", 3)))
    assert (str(error), error.rank) == ("rank 3 has ended", 3)

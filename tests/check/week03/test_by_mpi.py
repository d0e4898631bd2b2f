"""Data parallel with MPI alone: each mistake gets its own hint.

What starts and ends processes runs under mpiexec; so does the solution, in
tests/notebooks/test_exercises.py. The mistakes run on threads, with a communicator that adds and
copies as MPI's does: a start of mpiexec takes seconds.
"""

import json
import shutil
import signal
import socket
import subprocess
import threading
from functools import partial

import numpy as np
import pytest
import torch

from helpers import check
from helpers.check.week03 import by_mpi, mpi_rank, mpiexec

try:
    mpiexec.find_mpiexec()
    here = True
except mpiexec.NoMPI:
    here = False
with_mpi = pytest.mark.skipif(not here, reason="there is no mpiexec")


def stub(world, model, batches, loss_sum, rate):
    raise NotImplementedError


class Threads:
    """Ranks as threads: the calls of an MPI communicator that the exercise needs."""

    def __init__(self, rank: int, buffers: list, barrier: threading.Barrier):
        self.rank, self.buffers, self.barrier = rank, buffers, barrier

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return len(self.buffers)

    def _everyones(self, mine) -> list:
        self.buffers[self.rank] = np.array(mine)
        self.barrier.wait()
        found = list(self.buffers)
        self.barrier.wait()
        return found

    def Bcast(self, buffer, root=0):
        buffer[...] = self._everyones(buffer)[root]

    def Allreduce(self, mine, total):
        total[...] = sum(self._everyones(mine))


class Reports:
    def __init__(self):
        self.found = {}

    def report(self, case, rank):
        return self.found.get((case, rank))

    def stacks(self):
        return {}

    def printed(self):
        return "Killed"


def run_on_threads(fn, ranks, inputs, seconds) -> Reports:
    pixels = torch.frombuffer(bytearray(inputs["digits"]), dtype=torch.float64).view(-1, 65)
    reports = Reports()

    def one_rank(case, work, world):
        try:
            found = mpi_rank.train(fn, world, work, pixels)
        except Exception as error:
            found = mpi_rank.failure(error)
            world.barrier.abort()
        reports.found[case, world.rank] = json.dumps(found)

    for case, (work, size) in enumerate(mpi_rank.CASES):
        barrier, buffers = threading.Barrier(size, timeout=20), [None] * size
        threads = [
            threading.Thread(target=one_rank, args=(case, work, Threads(r, buffers, barrier)))
            for r in range(size)
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    return reports


@pytest.fixture
def on_threads(monkeypatch):
    """Threads share torch's random numbers, so they build their models one after another."""
    build, lock = mpi_rank.model_of, threading.Lock()

    def one_at_a_time(work, seed):
        with lock:
            return build(work, seed)

    monkeypatch.setattr(mpi_rank, "model_of", one_at_a_time)
    monkeypatch.setattr(by_mpi, "run_on_mpi_ranks", run_on_threads)


def train(
    world, model, batches, loss_sum, rate, *,
    broadcast=True, root=0, shard=None, update=None, loss_of=None, clear=True, sign=1,
):  # fmt: skip
    """The solution with a place for each mistake; no mpi4py, so that threads can run it."""
    rank, size, losses = world.Get_rank(), world.Get_size(), []
    shard = shard or (lambda rows, rank, size: rows.tensor_split(size)[rank])
    if broadcast:
        for parameter in model.parameters():
            world.Bcast(parameter.detach().numpy(), root=root)
    model.zero_grad()
    for rows in batches:
        loss, count = loss_sum(model, shard(rows, rank, size))
        if clear:
            model.zero_grad()
        loss.backward()
        mine = torch.cat([p.grad.flatten() for p in model.parameters()])

        def everyones(array):
            array = array.detach().double().numpy().copy()
            world.Allreduce(array.copy(), array)
            return torch.from_numpy(array)

        total = everyones(torch.tensor([count])).item()
        step = everyones(mine) / total
        if update:
            step = update(everyones, mine, count, total, size)
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(
                torch.nn.utils.parameters_to_vector(model.parameters()) - sign * rate * step,
                model.parameters(),
            )
        whole = everyones(loss.detach().view(1)).item()
        answer = loss_of(loss.item(), whole, count, total, size) if loss_of else whole / total
        losses.append(answer)
    return losses


def twice(world, model, batches, loss_sum, rate):
    for rows in batches:
        loss_sum(model, rows[:0])
        loss_sum(model, rows)
    return []


def nothing(everyones, mine, count, total, size):
    return mine * 0


def crashes(world, model, batches, loss_sum, rate):
    if world.Get_rank() == 1:
        raise ZeroDivisionError("division by zero")
    world.Bcast(np.zeros(1), root=0)
    return train(world, model, batches, loss_sum, rate)


def equal_parts(rows, rank, size):
    each = len(rows) // size
    return rows[rank * each : (rank + 1) * each]


def whole_if_small(rows, rank, size):
    """Right in the first steps."""
    return rows.tensor_split(size)[rank] if len(rows) > 4 else rows


def padded(rows, rank, size):
    each = -(-len(rows) // size)
    return rows.repeat(2)[rank * each : (rank + 1) * each]


MISTAKES = [
    ({"shard": lambda rows, rank, size: rows}, "takes the whole batch"),
    ({"shard": lambda rows, rank, size: rows.tensor_split(size)[0]}, "see the same rows"),
    ({"shard": equal_parts}, "need not divide evenly"),
    ({"shard": padded}, "on two ranks"),
    ({"shard": whole_if_small}, "takes the whole batch"),
    ({"broadcast": False}, "those of rank 0"),
    ({"root": -1}, "those of rank 0"),
    ({"update": lambda all_, mine, n, total, size: all_(mine)}, "summed, not averaged"),
    (
        {"update": lambda all_, mine, n, total, size: all_(mine / max(n, 1)) / size},
        "A mean of means",
    ),
    ({"update": lambda all_, mine, n, total, size: all_(mine / max(n, 1))}, "Means are added up"),
    ({"update": lambda all_, mine, n, total, size: all_(mine) / total / size}, "Too small"),
    ({"update": lambda all_, mine, n, total, size: all_(mine) / total * size}, "Too large"),
    ({"update": lambda all_, mine, n, total, size: mine / max(n, 1)}, "not shared their gradients"),
    ({"update": lambda all_, mine, n, total, size: mine / total}, "not shared their gradients"),
    ({"update": lambda all_, mine, n, total, size: all_(mine) / max(n, 1)}, "share that number"),
    ({"update": lambda all_, mine, n, total, size: (all_(mine) / total).float()}, "float32"),
    ({"update": lambda all_, mine, n, total, size: all_(mine).flip(0) / total}, "own parameter"),
    ({"update": nothing}, "changes the model"),
    ({"sign": -1}, "In which direction"),
    ({"clear": False}, "the step before"),
    ({"loss_of": lambda mine, whole, n, total, size: mine / max(n, 1)}, "rank's rows alone"),
    ({"loss_of": lambda mine, whole, n, total, size: mine / total}, "part of the loss"),
    ({"loss_of": lambda mine, whole, n, total, size: whole}, "the summed loss. Divide"),
    ({"loss_of": lambda mine, whole, n, total, size: whole / total * (1 + 1e-8)}, "float32"),
    ({"loss_of": lambda mine, whole, n, total, size: torch.tensor(whole / total)}, "Python number"),
]


@pytest.mark.usefixtures("on_threads")
@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.train_by_mpi(partial(train, **mistake))
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


@pytest.mark.usefixtures("on_threads")
@pytest.mark.parametrize(
    ("wrong", "hint"),
    [(twice, "once a step"), (lambda *args: [train(*args), None][1], "Return a list")],
)
def test_what_is_returned_and_how_often_loss_sum_is_called(wrong, hint):
    verdict = check.train_by_mpi(wrong)
    assert hint in verdict.hint, verdict


@pytest.mark.usefixtures("on_threads")
def test_a_float32_update_is_found_in_the_first_step():
    def rounded(everyones, mine, count, total, size):
        return (everyones(mine) / total).float()

    verdict = check.train_by_mpi(partial(train, update=rounded))
    assert "the update is the right one, to some seven digits" in verdict.finding, verdict


@pytest.mark.usefixtures("on_threads")
def test_the_communicator_of_threads_is_good_enough_to_pass():
    """A function that could raise the stub's error is no stub."""

    def careful(world, *given):
        if world.Get_size() > 9:
            raise NotImplementedError
        return train(world, *given)

    verdict = check.train_by_mpi(careful)
    assert verdict, verdict


def raised(error, not_written=False):
    return {"error": error, "not written": not_written, "frames": []}


def test_an_error_that_another_rank_has_caused_comes_last():
    late, early = raised("mpi4py.MPI.Exception: MPI_ERR_OTHER"), raised("ZeroDivisionError: 1 / 0")
    assert "rank 1 raised ZeroDivisionError" in by_mpi.what_broke([late, early], None).finding
    assert "rank 0 raised mpi4py" in by_mpi.what_broke([late, late], None).finding
    stub = by_mpi.what_broke([late, raised("NotImplementedError", True)], None)
    assert stub.status == "not written yet"


def test_a_rank_reads_only_its_own_user_s_folder(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="not this user's alone"):
        mpi_rank.main(tmp_path, 1.0)


def test_a_program_that_says_nothing_is_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(mpiexec, "LIMIT", 0.2)
    process = subprocess.Popen(["sleep", "60"])
    mpiexec.wait(process, mpiexec.Folder(tmp_path))
    mpiexec.end(process)
    assert process.returncode == -signal.SIGTERM


def test_a_rank_that_dies_without_a_word_is_told(monkeypatch):
    monkeypatch.setattr(by_mpi, "run_on_mpi_ranks", lambda *args: Reports())
    verdict = check.train_by_mpi(train)
    assert verdict.status == "wrong"
    assert "rank 0 ended without a report" in verdict.finding
    assert "Killed" in verdict.finding


def test_without_mpiexec_the_verdict_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *args, **kwargs: None)
    verdict = check.train_by_mpi(train)
    assert verdict.status == "wrong"
    assert "pip install mpich" in verdict.finding
    assert "not run" in verdict.hint


def test_the_stub_is_told_apart_without_a_start_of_mpiexec(monkeypatch):
    monkeypatch.setattr(by_mpi, "run_on_mpi_ranks", None)
    assert check.train_by_mpi(stub).status == "not written yet"


@with_mpi
def test_a_half_written_function_is_told_apart_under_mpiexec():
    outside = socket.if_nameindex() if mpiexec.private() else []

    def half(world, model, batches, loss_sum, rate):
        from mpi4py import MPI

        assert MPI.COMM_WORLD.Get_size() == world.Get_size()  # the ranks of this case
        assert len(outside) < 2 or socket.if_nameindex() != outside  # in a network without others
        for parameter in model.parameters():
            world.Bcast(parameter.detach().numpy(), root=0)
        raise NotImplementedError

    assert check.train_by_mpi(half).status == "not written yet"


@with_mpi
def test_a_crash_names_the_rank_and_the_line():
    verdict = check.train_by_mpi(crashes)
    assert verdict.status == "wrong"
    assert "rank 1 raised ZeroDivisionError" in verdict.finding, verdict
    assert "in crashes" in verdict.finding


@with_mpi
def test_a_hang_shows_where_the_ranks_are_and_ends(monkeypatch):
    """Rank 1 never broadcasts: the others are in Bcast, or in the next call."""

    def hangs(world, model, batches, loss_sum, rate):
        if world.Get_rank() != 1:
            total = np.zeros(1)
            world.Allreduce(np.ones(1), total)
        return [0.0] * len(batches) if world.Get_rank() == 1 else train_on(world)

    def train_on(world):
        world.Barrier()

    monkeypatch.setattr(by_mpi, "QUIET", 3.0)
    monkeypatch.setattr(by_mpi, "judge", lambda found, twin: None)
    verdict = check.train_by_mpi(hangs)
    assert verdict.status == "wrong"
    assert "a hang" in verdict.finding, verdict
    assert "in hangs" in verdict.finding
    assert "rank 1 had returned" in verdict.finding
    assert "same order" in verdict.hint


@with_mpi
@pytest.mark.alone  # it looks at the MPI ranks of the whole machine
def test_no_rank_is_left(monkeypatch):
    """Also a rank that hangs in C and hears no signal of Python's."""

    def hangs(world, model, batches, loss_sum, rate):
        world.Recv(np.zeros(1), source=world.Get_rank())

    monkeypatch.setattr(by_mpi, "QUIET", 1.0)
    before = ranks_alive()
    assert check.train_by_mpi(hangs).status == "wrong"
    assert ranks_alive() <= before


def ranks_alive() -> set[str]:
    found = subprocess.run(["pgrep", "-f", mpiexec.PROGRAM], capture_output=True, text=True)
    return set(found.stdout.split())

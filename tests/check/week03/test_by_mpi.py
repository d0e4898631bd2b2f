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
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
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


OURS = "TEST_OF_HANGS_BY_MPI"  # a variable of all that the test starts


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


def run_on_threads(fn, ranks, seconds) -> Reports:
    reports = Reports()

    def one_rank(world):
        try:
            found = mpi_rank.train(fn, world)
        except Exception as error:
            found = mpi_rank.failure(error)
            world.barrier.abort()
        reports.found[world.Get_size(), world.rank] = json.dumps(found)

    for size in mpi_rank.RANKS:
        barrier, buffers = threading.Barrier(size, timeout=20), [None] * size
        threads = [
            threading.Thread(target=one_rank, args=(Threads(r, buffers, barrier),))
            for r in range(size)
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    return reports


@pytest.fixture
def on_threads(monkeypatch):
    """Threads share torch's random numbers, so they build their models one after another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    build, lock = mpi_rank.model_of, threading.Lock()

    def one_at_a_time(seed):
        with lock:
            return build(seed)

    monkeypatch.setattr(mpi_rank, "model_of", one_at_a_time)
    monkeypatch.setattr(by_mpi, "run_on_mpi_ranks", run_on_threads)
    yield
    torch.set_num_threads(threads)


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
    ({"update": nothing}, "changes the model's"),
    ({"sign": -1}, "In which direction"),
    ({"clear": False}, "the step before"),
    ({"loss_of": lambda mine, whole, n, total, size: mine / max(n, 1)}, "rank's rows alone"),
    ({"loss_of": lambda mine, whole, n, total, size: mine / total}, "part of the loss"),
    ({"loss_of": lambda mine, whole, n, total, size: whole}, "the summed loss. Divide"),
    ({"loss_of": lambda mine, whole, n, total, size: whole / total * (1 + 1e-8)}, "float32"),
    ({"loss_of": lambda mine, whole, n, total, size: torch.tensor(whole / total)}, "Python number"),
    (twice, "once a step"),
    (lambda *given: [train(*given), None][1], "Return a list"),
]


@pytest.mark.usefixtures("on_threads")
@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    wrong = mistake if callable(mistake) else partial(train, **mistake)
    verdict = check.train_by_mpi(wrong)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


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
    return json.dumps({"error": error, "not written": not_written, "frames": [OWN, PROGRAM]})


OWN = ("/tmp/notebook.py", 7, "train")
PROGRAM = ("/course/helpers/check/week03/mpi_rank.py", 90, "train")


@pytest.mark.parametrize(
    ("reports", "finding", "hint"),
    [
        (
            (raised("mpi4py.MPI.Exception: MPI_ERR_OTHER"), raised("a leaf Variable was used")),
            'rank 1 raised a leaf Variable was used\n  File "/tmp/notebook.py", line 7, in train',
            "inside `with torch.no_grad():`",
        ),
        ((None, raised("MPI_ERR_TRUNCATE: late")), "rank 1 raised MPI_ERR", "as large on every"),
        ((raised("MPI_ERR"), raised("NotImplementedError", True)), "", ""),
        ((None, None), "rank 0 ended without a report\nKilled", ""),
    ],
)
def test_ranks_that_fail(monkeypatch, reports, finding, hint):
    """An error that another rank has caused comes last."""
    two = replace(by_mpi.train_by_mpi, cases=by_mpi.train_by_mpi.cases[1:2])
    found = Reports()
    found.found = {(2, rank): report for rank, report in enumerate(reports)}
    monkeypatch.setattr(by_mpi, "run_on_mpi_ranks", lambda *_: found)
    verdict = two(train)
    assert verdict.status == ("wrong" if finding else "not written yet")
    assert finding in verdict.finding, verdict
    assert "mpi_rank.py" not in verdict.finding
    assert hint in verdict.hint


def test_the_reference_is_pytorch_s_own_optimizer():
    found = by_mpi.play(by_mpi.train, 2)
    model, losses = mpi_rank.model_of(0), []
    optimizer = torch.optim.SGD(model.parameters(), mpi_rank.RATE)
    for rows in mpi_rank.batches():
        loss, count = mpi_rank.loss_of_rows(model, rows)
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append(loss.item() / count)
    assert found[by_mpi.LOSSES] == [pytest.approx(losses, rel=1e-12)] * 2
    for state in found[by_mpi.END]:
        torch.testing.assert_close(state, mpi_rank.flat(model), rtol=0, atol=1e-12)


def test_ranks_begin_apart_and_shards_are_uneven():
    one, other = (mpi_rank.flat(mpi_rank.model_of(seed)) for seed in (0, 1))
    assert not torch.equal(one, other)
    assert all(any(size % ranks for size in mpi_rank.SIZES) for ranks in (2, 3))
    assert min(mpi_rank.SIZES) < 3


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


def test_ranks_that_do_not_end_when_asked_are_killed_with_their_mpiexec(monkeypatch):
    deaf = "trap '' TERM; sleep 60 & echo $!; wait"
    process = subprocess.Popen(["sh", "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
    rank, wait = psutil.Process(int(process.stdout.readline())), process.wait
    monkeypatch.setattr(process, "wait", lambda timeout=None: wait(timeout and 0.1))
    mpiexec.end(process)
    assert process.returncode == -signal.SIGKILL
    psutil.wait_procs([rank], 10)
    assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE


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
def test_a_crash_names_the_rank_and_the_line():
    outside = socket.if_nameindex() if mpiexec.private() else []

    def crashes(world, model, batches, loss_sum, rate):
        from mpi4py import MPI

        if world.Get_rank() == 1:
            assert MPI.COMM_WORLD.Get_size() == world.Get_size()  # the ranks of this case
            assert len(outside) < 2 or socket.if_nameindex() != outside  # a network of its own
            raise ZeroDivisionError("division by zero")
        world.Bcast(np.zeros(1), root=0)
        return train(world, model, batches, loss_sum, rate)

    verdict = check.train_by_mpi(crashes)
    assert verdict.status == "wrong"
    assert "rank 1 raised ZeroDivisionError" in verdict.finding, verdict
    assert "in crashes" in verdict.finding


@with_mpi
def test_a_hang_shows_where_the_ranks_are_and_no_rank_is_left(monkeypatch):
    """Rank 1 never broadcasts: the others wait in C, in Allreduce or in the next call."""

    def hangs(world, model, batches, loss_sum, rate):
        if world.Get_rank() != 1:
            world.Allreduce(np.ones(1), np.zeros(1))
            world.Barrier()
        return [0.0] * len(batches)

    monkeypatch.setattr(by_mpi, "QUIET", 3.0)
    monkeypatch.setenv(OURS, "1")
    two = replace(by_mpi.train_by_mpi, cases=by_mpi.train_by_mpi.cases[1:2])
    verdict = two(hangs)
    assert verdict.status == "wrong"
    assert "a hang" in verdict.finding, verdict
    assert "in hangs" in verdict.finding
    assert "rank 1 had returned" in verdict.finding
    assert "rank 1 was" not in verdict.finding
    assert "same order" in verdict.hint
    assert not [p for p in psutil.process_iter(["environ"]) if OURS in (p.info["environ"] or {})]


def test_alone_there_is_only_the_loopback_and_an_empty_shared_memory():
    if not mpiexec.private():
        pytest.skip("this system allows no network of one's own")
    show = 'ip -o link; ls -A /dev/shm; echo "$0 $1 $2"'
    line = [*mpiexec.private(), "sh", "-c", show, "a b", "c", "d"]
    links, *rest = subprocess.run(line, capture_output=True, text=True).stdout.splitlines()
    assert links.startswith("1: lo: <LOOPBACK,UP")
    assert rest == ["a b c d"]

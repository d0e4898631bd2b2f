"""What another user of the machine can do to ranks: nothing in their own network.

Where they have none, a stranger that answers in place of a rank ends the call.
"""

import os
import re
import signal
import threading
import time
import weakref

import psutil
import pytest
import torch
import torch.distributed as dist

from helpers.runtime import private, proof
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.local import network, start
from helpers.runtime.local.channel import readable
from tests.runtime.strangers import listening, speak_as_a_rank, stranger

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/ns/net"), reason="strangers look at /proc, on Linux"
)
own_network = pytest.mark.skipif(not network.possible(), reason="no networks can be made here")
SAID = re.compile(r"another process answered in place of rank \d: the ranks meet once more")
TRIES = 60  # of four ranks, rank 0 is by chance the one that calls all others, one time in four


def add(worker):
    tensor = torch.full((4,), worker.rank + 1.0)
    dist.all_reduce(tensor)
    return tensor.tolist()


class Stage:
    """Ranks whose rank 0 listens, while the others have not come."""

    def __init__(self, workers: int, **options):
        self.cluster = Cluster(workers, timeout=60, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(start, "anonymous_file", self.meeting_file)
            self.cluster.start()
        self.processes = self.cluster.processes
        for process in self.processes.ranks:
            process.listen()
        self.until(lambda: all(process.pid for process in self.processes.ranks))
        self.others = list(range(1, workers))
        self.processes.signal(self.others, signal.SIGSTOP)
        stopped = [psutil.Process(self.processes.ranks[rank].pid) for rank in self.others]
        self.until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in stopped))
        self.pid = self.processes.ranks[0].pid
        self.error = self.result = None
        self.thread = threading.Thread(target=self.call, daemon=True)
        self.thread.start()

    def meeting_file(self) -> int:
        """The first file is where the ranks meet; the second holds the notes of their calls."""
        made = private.anonymous_file()
        if not hasattr(self, "meeting"):
            self.meeting = os.dup(made)
            self.forget = weakref.finalize(self, os.close, self.meeting)
        return made

    def pretend(self):
        """Let rank 0 believe that the others have come, so that it listens."""
        self.store = dist.FileStore(f"/proc/self/fd/{self.meeting}", len(self.others) + 1)
        for rank in self.others:
            self.store.set(f"come/{rank}", "")

    def call(self):
        try:
            self.result = list(self.cluster.run(add))
        except BaseException as error:
            self.error = error

    def until(self, condition):
        limit = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < limit
            if self.processes and readable(self.processes):
                self.processes.notices()
            time.sleep(0.005)

    def port(self, seen_from) -> int:
        """Rank 0's, as it is seen from there."""
        self.processes = None  # from here on the call listens to the server
        self.until(lambda: listening(self.pid, self.pid))
        assert listening(self.pid, self.pid)
        return (listening(self.pid, seen_from) or [0])[0]

    def go_on(self):
        self.cluster.processes.signal(self.others, signal.SIGCONT)
        self.thread.join(90)
        assert not self.thread.is_alive()

    def close(self):
        self.cluster.close()
        self.forget()


@pytest.fixture
def stage():
    stages = []

    def make(*arguments, **options):
        stages.append(Stage(*arguments, **options))
        return stages[-1]

    yield make
    for one in stages:
        one.close()


def attacked(stage: Stage, deed) -> Stage:
    """Rank 0's port is found, and dealt with, before the other ranks come."""
    stage.pretend()
    port, (read, write) = stage.port(seen_from="self"), os.pipe()
    assert port, "the ranks are in this machine's network: the port shows"
    with stranger(deed, port, write):
        os.close(write)
        assert os.read(read, 1) == b"!"
        stage.go_on()
    os.close(read)
    return stage


@own_network
def test_no_port_shows_outside_and_no_one_reaches_the_ranks(stage):
    one = stage(3)
    assert one.port(seen_from="self") == 0
    one.go_on()
    assert one.error is None, one.error
    assert one.result == [[6.0] * 4] * 3


def test_in_the_machine_s_network_a_rank_listens_once_all_have_come(stage):
    """Before, a stranger would have all the time until they come."""
    one = stage(3, network=True)
    look = time.monotonic() + 2
    while time.monotonic() < look:
        assert not listening(one.pid, one.pid)
        time.sleep(0.01)
    one.go_on()
    assert one.error is None, one.error
    assert one.result == [[6.0] * 4] * 3


def test_after_a_stranger_the_ranks_meet_at_other_ports(stage, capfd):
    for _ in range(TRIES):
        one = attacked(stage(4, network=True), speak_as_a_rank)
        assert one.error is None, one.error
        assert one.result == [[10.0] * 4] * 4
        one.close()
        if SAID.search(capfd.readouterr().out):  # else the stranger was not listened to
            return
    pytest.fail("no stranger was listened to")


@pytest.mark.parametrize(
    ("wrong", "tries"), [([], 1), ([2], 2), ([2, 0], 3), ([2, 0, 1], 3), ([2, 0, 1, 2], 3)]
)
def test_three_tries_and_the_function_runs_once(monkeypatch, capfd, tmp_path, wrong, tries):
    """In the first tries, one rank has another key."""
    setup, started = start.Setup, []

    def with_keys(*, rank, key, **others):
        started.append(rank)
        attempt = (len(started) - 1) // 3
        other = attempt < len(wrong) and wrong[attempt] == rank
        return setup(rank=rank, key=bytes(32) if other else key, **others)

    def run(worker, large):
        (tmp_path / f"{worker.rank}-{os.getpid()}").touch()
        return add(worker), large.sum().item()

    monkeypatch.setattr(start, "Setup", with_keys)
    large = torch.ones(100_000)  # its bytes travel in a file
    with Cluster(3, network=True) as cluster:
        if len(wrong) < 3:
            assert list(cluster.run(run, large=large)) == [([6.0] * 4, 100_000.0)] * 3
        else:
            with pytest.raises(WorkerError, match=r"raised Stranger: another process answered"):
                cluster.run(run, large=large)
    assert len(started) == 3 * tries
    assert len(SAID.findall(capfd.readouterr().out)) == tries - 1
    assert len(list(tmp_path.iterdir())) == (3 if len(wrong) < 3 else 0)


def test_a_stranger_in_a_group_of_the_function_ends_the_call(capfd):
    """The function has begun, and would begin again."""

    def run(worker):
        raise proof.Stranger("in a group of its own")

    with pytest.raises(WorkerError, match="in a group of its own"), Cluster(2) as cluster:
        cluster.run(run)
    assert "once more" not in capfd.readouterr().out

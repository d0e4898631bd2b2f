"""Ranks that cannot start are told of in one kind of error."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.runtime.failure import ServerLost, WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import start
from helpers.runtime.local.forkserver.processes import Processes


def test_a_rank_that_ends_before_it_hears_its_place(monkeypatch):
    class Broken(Processes):
        def __init__(self, workers, method):
            super().__init__(workers, method)
            self.ranks[1].channel.socket.shutdown(2)  # as when its process has ended

    with monkeypatch.context() as patch:
        patch.setattr(start, "Processes", Broken)
        with pytest.raises(WorkerError, match="rank 1 could not start") as caught:
            launch(lambda worker: worker.rank, workers=3)
    assert caught.value.rank == 1
    assert list(launch(lambda worker: worker.rank)) == [0, 1]


def test_what_replaces_the_notebook_s_variables(monkeypatch):
    own = start.own_environ(1, 3, "cpu")
    assert (own["RANK"], own["LOCAL_RANK"]) == ("1", "1")
    assert (own["WORLD_SIZE"], own["LOCAL_WORLD_SIZE"]) == ("3", "3")
    assert own["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in start.own_environ(0, 2, "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,3,GPU-a,5")
    assert start.own_environ(0, 2, "cuda", first_gpu=1)["CUDA_VISIBLE_DEVICES"] == "3,GPU-a"
    assert own["GLOO_SOCKET_IFNAME"] == own["NCCL_SOCKET_IFNAME"]
    assert own["GLOO_SOCKET_IFNAME"].startswith("lo")


class Rank:
    """A rank that notes what it is sent."""

    def __init__(self, rank):
        self.rank, self.told = rank, []

    def send(self, *message, fd=None):
        self.told.append((*message, fd))


@pytest.fixture
def ranks(monkeypatch):
    """Start three ranks that are none; return them, and how often a server was asked."""
    asked, lost = [], []

    def processes(workers, method):
        asked.append((workers, method))
        if lost:
            raise lost.pop()
        return SimpleNamespace(ranks=[Rank(rank) for rank in range(workers)])

    monkeypatch.setattr(start, "Processes", processes)
    monkeypatch.setattr(start.sys, "platform", "linux")
    monkeypatch.setattr(start, "cores", lambda: 8)

    def begin(losses=0, **options):
        lost[:] = [ServerLost("") for _ in range(losses)]
        given = {"device": "cpu", "backend": "gloo", "method": "spawn", "timeout": 5.0}
        return start.start_ranks(3, **{**given, **options}).ranks

    begin.asked = asked
    return begin


def test_a_server_that_was_lost_is_replaced_once(ranks):
    ranks(losses=1)
    assert ranks.asked == [(3, "spawn")] * 2
    with pytest.raises(ServerLost):
        ranks(losses=2)
    assert len(ranks.asked) == 4


def test_every_option_is_in_the_setup_of_each_rank(ranks, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/a", "/b", "/c"])
    monkeypatch.setattr(start, "mark", lambda: "srun 7.0")
    before = len(os.listdir("/proc/self/fd"))
    found = ranks(device="cuda", backend="nccl", first_gpu=4, debug=True)
    assert len(os.listdir("/proc/self/fd")) == before
    setups = [rank.told[1][0] for rank in found[:2]]
    assert [setup.gpu for setup in setups] == [0, 1]
    for rank, setup in enumerate(setups):
        assert (setup.rank, setup.world_size, setup.threads) == (rank, 3, 2)
        assert (setup.device, setup.backend, setup.debug) == ("cuda", "nccl", True)
        assert (setup.path, setup.folder) == (["/a", "/b", "/c"], os.getcwd())
        assert (setup.own["RANK"], setup.own["WORLD_SIZE"]) == (str(rank), "3")
        assert setup.own["HELPERS_INSIDE"] == "srun 7.0"
        assert setup.own["CUDA_VISIBLE_DEVICES"] == "4,5,6"
        assert setup.rendezvous is None
    assert len({rank.told[1][1] for rank in found}) == 1  # they meet in one file
    assert len({setup.key for setup in setups}) == 1
    assert setups[0].environ["PATH"] == os.environ["PATH"]
    for timeout, patience in ((None, 1800), (2, 1800), (5000, 10_000)):  # longer than the caller's
        assert ranks(timeout=timeout)[0].told[1][0].timeout == patience
    assert ranks()[0].told[1][0].debug is False
    assert ranks()[0].told[1][0].gpu == 0
    monkeypatch.setattr(start, "cores", lambda: 2)
    assert ranks()[0].told[1][0].threads == 1  # no rank has none


@pytest.mark.parametrize(
    ("options", "compared"),
    [
        ({}, True),
        ({"compare": False}, False),
        ({"device": "cuda", "backend": "nccl"}, False),  # a call of NCCL takes microseconds
        ({"device": "cuda", "backend": "nccl", "debug": True}, True),
    ],
)
def test_which_ranks_share_a_memory_for_their_calls(ranks, options, compared):
    told = [
        [message for message in rank.told if message[0] == "notes"] for rank in ranks(**options)
    ]
    assert len({one[0][1] for one in told if one}) == compared
    assert all(len(one) == compared for one in told)


@pytest.mark.parametrize(
    ("network", "platform", "stay"),
    [(False, "linux", False), (True, "linux", True), (False, "darwin", True)],
)
def test_the_first_message_is_a_ranks_network(ranks, monkeypatch, network, platform, stay):
    """Rank 0 makes one for the two others, over one socket; the others share its other end."""
    monkeypatch.setattr(start.sys, "platform", platform)
    first, second = (rank.told[0] for rank in ranks(network=network)[:2])
    if stay:
        assert first == second == ("stay", 2, None)
    else:
        assert (first[:2], second[:2]) == (("make", 2), ("join", 2))
        assert first[2] != second[2]
    own = start.own_environ(1, 3, "cpu")
    assert own["GLOO_SOCKET_IFNAME"] == ("lo" if platform == "linux" else "lo0")


def test_without_proc_ranks_meet_in_a_file_of_each_start(ranks, monkeypatch):
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self/fd")
    monkeypatch.setattr(sys, "platform", "darwin")  # Linux without /proc is refused
    told = [ranks()[rank].told[1] for rank in (0, 1)]
    assert [fd for _, fd in told] == [None, None]
    paths = [Path(setup.rendezvous) for setup, _ in told]
    assert len(set(paths)) == 2
    assert {path.parent for path in paths} == {start.private_folder()}
    assert not any(path.exists() for path in paths)


def test_a_folder_that_was_removed_is_reached_by_another_way(monkeypatch):
    def removed():
        raise FileNotFoundError

    assert start.working_folder() == os.getcwd()
    monkeypatch.setattr(os, "getcwd", removed)
    assert start.working_folder() == f"/proc/{os.getpid()}/cwd"
    monkeypatch.setattr(os.path, "isdir", lambda path: False)
    assert start.working_folder() is None

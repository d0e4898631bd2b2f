"""Ranks that cannot start are told of in one kind of error."""

import gc
import os

import pytest
import torch

from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import start
from helpers.runtime.local.processes import Processes


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


@pytest.mark.parametrize(("timeout", "patience"), [(None, 1800), (2, 1800), (5000, 10_000)])
def test_what_each_rank_is_told(monkeypatch, timeout, patience):
    """The backend waits longer than the caller; the cores are shared out."""
    launch(lambda worker: None, workers=1)  # the server is there
    gc.collect()  # what other tests have left would be closed meanwhile
    told, before = [], len(os.listdir("/proc/self/fd"))
    setup = start.Setup
    monkeypatch.setattr(start, "Setup", lambda **own: told.append(own) or setup(**own))
    monkeypatch.setattr(start, "cores", lambda: 7)
    assert list(launch(threads, workers=2, timeout=timeout)) == [3, 3]
    assert [own["rank"] for own in told] == [0, 1]
    assert {own["timeout"] for own in told} == {patience}
    assert told[0]["key"] == told[1]["key"]
    assert told[0]["environ"]["PATH"] == os.environ["PATH"]
    assert len(os.listdir("/proc/self/fd")) <= before


def test_what_replaces_the_notebook_s_variables():
    own = start.own_environ(1, 3, "cpu")
    assert (own["RANK"], own["LOCAL_RANK"]) == ("1", "1")
    assert (own["WORLD_SIZE"], own["LOCAL_WORLD_SIZE"]) == ("3", "3")
    assert own["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in start.own_environ(0, 2, "cuda")
    assert own["GLOO_SOCKET_IFNAME"] == own["NCCL_SOCKET_IFNAME"]
    assert own["GLOO_SOCKET_IFNAME"].startswith("lo")


def threads(worker):
    return torch.get_num_threads()

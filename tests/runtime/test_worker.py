"""What a rank offers: log, track, its place, its seeds."""

import os
import random
import socket
import time
from enum import StrEnum

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from helpers.runtime.cluster import Cluster
from helpers.runtime.launch import launch
from helpers.runtime.local.channel import Channel
from helpers.runtime.worker import Worker, plain, seed_differently
from tests.cuda import Cuda


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2) as cluster:
        yield cluster


def test_its_place(cluster):
    def place(worker):
        device = str(worker.device)
        return worker.rank, worker.local_rank, worker.world_size, device, repr(worker)

    runs = cluster.run(place)
    assert runs[1] == (1, 1, 2, "cpu", "Worker(rank=1, world_size=2, device='cpu')")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert cluster.run(lambda worker: [os.environ[n] for n in names])[1] == ["1", "1", "2", "2"]


def test_log_comes_back_as_a_frame(cluster):
    class Note(StrEnum):
        FIRST = "x"

    def train(worker):
        for step in range(3):
            worker.log(step=step, loss=torch.tensor(step / 2), norm=np.float64(1), note=Note.FIRST)
        worker.log(end=True)

    frame = cluster.run(train).frame()
    assert list(frame.columns) == ["rank", "step", "loss", "norm", "note", "end", "seconds"]
    assert list(frame["rank"]) == [0] * 4 + [1] * 4
    assert list(frame["loss"][:3]) == [0.0, 0.5, 1.0]
    assert {*map(repr, frame["note"][:3])} == {"'x'"}
    assert frame["seconds"].between(0, 60).all()


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        ({"rank": 1}, ValueError, "use another name"),
        ({"loss": 1.0, "seconds": 1}, ValueError, r"adds \['rank', 'seconds'\] itself"),
        ({"loss": torch.ones(3)}, TypeError, r"not a Tensor of shape \(3,\)"),
        ({"loss": [1]}, TypeError, "not a list"),
    ],
)
def test_what_log_does_not_take(values, kind, said):
    with pytest.raises(kind, match=said):
        Worker(0, 1, torch.device("cpu"), None).log(**values)


@pytest.mark.parametrize(
    "one", [np.float32(0.5), np.array([0.5]), np.array(0.5), torch.tensor([[0.5]]), np.int64(3)]
)
def test_one_number_is_logged_as_a_number(one):
    found = plain("loss", one)
    assert type(found) in (int, float)
    assert found == float(one.reshape(-1)[0])


def test_log_is_no_place_for_nothing_or_much():
    assert plain("loss", None) is None
    for many in (torch.empty(0), np.empty(0), np.ones(2)):
        with pytest.raises(TypeError, match="takes numbers and words"):
            plain("loss", many)


def line_and_worker():
    here, there = map(Channel, socket.socketpair())
    return here, there, Worker(0, 1, torch.device("cpu"), here)


def test_a_bar_moves_from_time_to_time_and_to_its_end(monkeypatch):
    """Also where the loop ends early, or fails."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    here, there, worker = line_and_worker()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for number in worker.track(range(20)):
            now[0] += 0.02
            1 / (number - 10)
    moves = [message for message, _ in there.messages()]
    assert moves == [("track", "", done, 20) for done in (0, 1, 4, 7, 10, 10)]
    worker.log(loss=0.5, done=True)
    assert next(there.messages())[0] == ("log", now[0] - 100.0, {"loss": 0.5, "done": True})
    here.close()
    there.close()


class Endless(IterableDataset):
    def __iter__(self):
        return iter("abc")


@pytest.mark.parametrize(
    ("make", "given", "total"),
    [
        (lambda: "abc", None, 3),
        (lambda: "abc", 12, 12),  # a given total counts, also where there is a length
        (lambda: iter("abc"), 12, 12),
        (lambda: iter("abc"), None, None),
        (lambda: DataLoader(Endless(), batch_size=None), None, None),  # its `len` raises
    ],
)
def test_a_bar_s_total(make, given, total):
    here, there, worker = line_and_worker()
    assert "".join(worker.track(make(), given, label="train")) == "abc"
    moves = [message for message, _ in there.messages()]
    here.close()
    there.close()
    assert {(kind, label, end) for kind, label, _, end in moves} == {("track", "train", total)}
    done = [done for _, _, done, _ in moves]
    assert (done[0], done[-1]) == (0, 3)
    assert done == sorted(done)


def test_seeds_differ_between_ranks_and_between_calls():
    def draw(worker):

        return torch.rand(1).item(), np.random.rand(), random.random()

    drawn = [values for _ in range(2) for values in launch(draw)]
    for generator in zip(*drawn, strict=True):
        assert len(set(generator)) == 4


def test_all_generators_are_seeded_anew():
    kept = np.random.get_state(), torch.get_rng_state()
    try:
        drawn = []
        for _ in range(2):
            np.random.seed(0)
            torch.manual_seed(0)
            seed_differently(torch.device("cpu"))
            drawn.append((np.random.rand(), torch.rand(()).item()))
    finally:
        np.random.set_state(kept[0])
        torch.set_rng_state(kept[1])
    for one, other in zip(*drawn, strict=True):
        assert one != other


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:2"])
def test_a_rank_of_a_gpu_seeds_that_too(monkeypatch, device):
    """Each process starts with the same numbers for its GPU."""
    cuda, device = Cuda(monkeypatch), torch.device(device)
    cuda.current = device.index or 0
    seed_differently(device)
    assert cuda.calls == ([] if device.type == "cpu" else [("seed", device.index)])

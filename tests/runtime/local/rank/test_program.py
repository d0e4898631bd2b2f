"""What a rank makes of its setup and of its calls."""

import os
import socket
import sys
import threading
import weakref
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local.channel import Channel
from helpers.runtime.local.hangs.whereabouts import Answer
from helpers.runtime.local.rank import listener
from helpers.runtime.local.rank import program as rank
from helpers.runtime.local.rank.program import set_environ
from helpers.runtime.payload import pack
from tests.cuda import Cuda


def test_environment_folder_and_path_reach_the_ranks(tmp_path, monkeypatch):
    launch(lambda worker: None, workers=1)  # the server has the variables of before
    monkeypatch.setenv("A_STUDENTS_VARIABLE", "x y")
    monkeypatch.setenv("RANK", "9")  # each rank has its own
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "/none/such"])

    def f(worker):
        own = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
        variables = os.environ["A_STUDENTS_VARIABLE"], os.environ.get("HOME")
        return own, *variables, os.getcwd(), sys.path[-1]

    assert launch(f)[1] == (["1", "1", "2"], "x y", None, str(tmp_path), "/none/such")


def test_results_that_cannot_travel():
    def f(worker):
        return {"a": 1, "b": (i for i in "xy")} if worker.rank == 1 else None

    with pytest.raises(WorkerError) as caught:
        launch(f, workers=3)
    assert caught.value.rank == 1
    assert "`result['b']` is a generator" in str(caught.value)
    assert "helpers/runtime" not in caught.value.traceback


def test_a_rank_that_closes_what_is_not_its_own():
    def close(worker):
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                kind = os.readlink(f"/proc/self/fd/{number}")
            except OSError:  # the listing's own
                continue
            # gloo aborts when its epoll descriptor is gone, sometimes before the worker notices
            if number > 2 and not kind.startswith("anon_inode"):
                os.close(number)

    with pytest.raises(WorkerError, match="rank 0 lost its connection to the notebook: did the"):
        launch(close, workers=1)


def test_variables_are_set_and_removed(monkeypatch):
    monkeypatch.setenv("HELPERS_OLD", "1")
    monkeypatch.setenv("HELPERS_KEPT", "2")
    monkeypatch.setenv("HELPERS_NEW", "to be removed at the end")
    set_environ({"HELPERS_OLD": None, "HELPERS_NEW": "3", "HELPERS_NEVER": None})
    names = ("HELPERS_OLD", "HELPERS_KEPT", "HELPERS_NEW", "HELPERS_NEVER")
    assert [os.environ.get(name) for name in names] == [None, "2", "3", None]


@pytest.mark.parametrize("fails", [False, True])
def test_a_fork_that_leaves_the_function_too_does_not_answer(fails):
    def fork(worker):
        if (child := os.fork()) == 0:
            if fails:
                raise ValueError("of the fork")
            return "the fork"
        return "the rank", os.waitpid(child, 0)[1]

    assert list(launch(fork, workers=1)) == [("the rank", 0)]


def test_from_call_to_call(monkeypatch, capsys):
    """A rank keeps no descriptor of a call, and its own place, whatever the notebook sets."""

    monkeypatch.setenv("AN_OLD", "there")

    def look(worker, large):
        names = [os.environ.get(name) for name in ("A_NEW", "AN_OLD", "RANK")]
        return len(os.listdir("/proc/self/fd")), names, torch.initial_seed()

    def fails(worker):
        print("half a line", end="")
        raise ValueError("so")

    with Cluster(2) as cluster:
        large = torch.zeros(100_000)  # more than travels in a message
        before = list(cluster.run(look, large=large))
        assert before[0][2] != before[1][2]  # each draws its own numbers
        monkeypatch.setenv("RANK", "7")
        monkeypatch.setenv("A_NEW", "one")
        monkeypatch.delenv("AN_OLD")
        for _ in range(2):
            after = list(cluster.run(look, large=large))
        assert [count for count, _, _ in after] == [count for count, _, _ in before]
        assert [names for _, names, _ in before] == [[None, "there", rank] for rank in "01"]
        assert [names for _, names, _ in after] == [["one", None, rank] for rank in "01"]
        with pytest.raises(WorkerError, match="so"):
            cluster.run(fails)
    assert "[rank 0] half a line" in capsys.readouterr().out


SETUP = rank.Setup(
    rank=2, world_size=3, device="cpu", gpu=5, backend="gloo", threads=4, timeout=1234.0,
    rendezvous=None, path=["/a", "/b"], folder=None, environ={"NEW": "1", "RANK": "9"},
    own={"RANK": "2"}, key=b"the key",
)  # fmt: skip


@pytest.fixture
def joins(monkeypatch):
    """Join by a setup, with none to meet; return all that was done, in order."""
    done = []

    def note(place, name):
        told = lambda *of, **how: done.append((name, of, how))  # noqa: E731
        monkeypatch.setattr(place, name, told)

    monkeypatch.setattr(os, "environ", {"OLD": "0"})
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(rank.dist, "FileStore", lambda *of: ("store", *of))
    for place, name in (
        (os, "chdir"), (rank, "seed_differently"), (rank.proof, "keep"), (rank.proof, "prove"),
        (rank.dist, "set_debug_level_from_env"), (rank.dist, "init_process_group"),
        (rank.listener, "joined"), (torch, "set_num_threads"), (rank, "wait_for_all"),
    ):  # fmt: skip
        note(place, name)

    def join(own_network=False, **changes):
        done.clear()
        monkeypatch.setattr(rank.network, "own", lambda: own_network)
        line = SimpleNamespace(post=lambda *of: done.append(("post", of, {})))
        worker = rank.join(replace(SETUP, **changes), 8, line)
        assert (worker.rank, worker.world_size, worker._channel) == (2, 3, line)
        return worker, {name: (*of, how) if how else of for name, of, how in done}

    return join


def test_a_rank_becomes_what_its_setup_says(joins):
    worker, done = joins(debug=False, folder="/tmp")
    assert dict(os.environ) == {"NEW": "1", "RANK": "2"}
    assert (sys.path, worker.device) == (["/a", "/b"], torch.device("cpu"))
    timeout = timedelta(seconds=1234)
    place = {"store": ("store", "/proc/self/fd/8", 3), "rank": 2, "world_size": 3}
    assert done == {
        "chdir": ("/tmp",),
        "set_num_threads": (4,),
        "seed_differently": (torch.device("cpu"),),
        "wait_for_all": (place["store"], replace(SETUP, folder="/tmp"), "come"),
        "init_process_group": ("gloo", {**place, "timeout": timeout, "device_id": None}),
        "keep": (b"the key",),
        "prove": (),
        "post": ("joined",),
        "joined": (),
    }
    names = list(done)
    assert names.index("wait_for_all") < names.index("init_process_group") < names.index("keep")
    assert names.index("keep") < names.index("prove") < names.index("post")


def test_ranks_of_their_own_network_prove_nothing_and_debug_is_told_to_pytorch(joins):
    _, done = joins(own_network=True, debug=True, rendezvous="/x/meet")
    assert os.environ["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert not {"keep", "prove", "chdir"} & set(done)
    assert "set_debug_level_from_env" in done
    assert done["wait_for_all"][-1] == "connected"
    names = list(done)
    assert names.index("init_process_group") < names.index("wait_for_all") < names.index("post")
    assert done["init_process_group"][1]["store"] == ("store", "/x/meet", 3)


def test_a_rank_of_a_gpu_has_that_gpu_alone(joins, monkeypatch):
    cuda = Cuda(monkeypatch, gpus=6)
    monkeypatch.setattr(rank, "seed_differently", lambda device: cuda.seed())
    worker, done = joins(device="cuda", backend="cpu:gloo,cuda:nccl")
    gpu = torch.device("cuda", 5)
    assert worker.device == gpu
    assert cuda.calls == [("set_device", 5), ("seed", 5)]
    assert done["init_process_group"][1]["device_id"] == gpu
    ended = []
    child = SimpleNamespace(
        terminate=lambda: ended.append("told"), join=lambda timeout: ended.append(timeout)
    )
    monkeypatch.setattr(rank.multiprocessing, "active_children", lambda: [child])
    monkeypatch.setattr(rank.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(rank.dist, "destroy_process_group", lambda: ended.append("destroyed"))
    rank.leave(SETUP)
    assert ended == ["told", 1]
    rank.leave(replace(SETUP, device="cuda"))
    assert ended[2:] == ["told", 1, "destroyed"]
    monkeypatch.setattr(rank.dist, "is_initialized", lambda: False)  # the function destroyed it
    rank.leave(replace(SETUP, device="cuda"))
    assert ended[5:] == ["told", 1]


@pytest.mark.parametrize("left", [True, False])
def test_what_a_function_leaves_for_the_end_is_told_before_its_result(monkeypatch, left):
    said = []
    monkeypatch.setattr(rank, "flush", lambda: said.append("flushed"))
    monkeypatch.setattr(rank.ending, "something_left", lambda: left)
    line = SimpleNamespace(
        post=lambda *of: said.append(of), send=lambda kind, *of, fd: said.append((kind, fd))
    )
    parcel = pack((lambda worker: 3, {}, {}))
    files = SimpleNamespace(look=lambda: said.append("looked"))
    rank.run(SimpleNamespace(_channel=line), parcel, files)
    assert said == ["flushed", "looked", *[("later",)] * left, ("result", None)]


def test_a_failure_is_kept_for_a_debugger_and_told_after_its_prints(monkeypatch):
    said = []
    monkeypatch.setattr(rank.listener, "remember", lambda error: said.append(type(error)))
    monkeypatch.setattr(rank, "flush", lambda: said.append("flushed"))
    monkeypatch.setattr(rank.network, "hint", lambda error: f"a hint about {error}")
    line = SimpleNamespace(send=lambda kind, report: said.append((kind, report["hint"])))
    assert rank.answer(line, lambda: {}["x"]) is None
    assert said == [KeyError, "flushed", ("error", "a hint about 'x'")]
    assert rank.answer(line, lambda: 3) == 3
    assert len(said) == 3


@pytest.fixture
def line():
    here, there = map(Channel, socket.socketpair())
    thread = threading.Thread(target=listener.answer, args=(there,))
    thread.start()
    yield here
    here.close()
    thread.join(30)
    there.close()
    assert not thread.is_alive()  # it ends once the notebook hangs up


def ask(line, *message):
    line.socket.settimeout(20)
    line.send(*message)
    return line.receive()[0]


def test_every_look_is_by_the_same_observer(line, monkeypatch):
    """It compares what it sees with an earlier look."""
    made = []

    class Counter:
        looks = 0

        def look(self, group):
            self.looks += 1
            return Answer("running", issued={str(group): {self.looks: "barrier"}})

    monkeypatch.setattr(listener, "start_observer", lambda: made.append(Counter()) or made[-1])
    monkeypatch.setattr(listener, "_group", None)
    seen = [ask(line, "look")[0].issued for _ in range(3)]
    assert seen == [{"None": {n: "barrier"}} for n in (1, 2, 3)]
    assert len(made) == 1


def test_the_group_that_the_ranks_first_formed_is_the_one_looked_at(line, monkeypatch):
    class Group:
        pass

    first, groups, before = Group(), [], dist.group.WORLD
    monkeypatch.setattr(listener, "_group", None)
    dist.group.WORLD = first
    try:
        listener.joined()
    finally:
        dist.group.WORLD = before
    assert isinstance(listener._group, weakref.ref)
    observer = type("Seen", (), {"look": lambda _, group: groups.append(group) or "seen"})
    monkeypatch.setattr(listener, "start_observer", observer)
    assert ask(line, "look") == ("seen",)
    assert groups == [first]


def test_a_debugger_that_fails_is_answered_too_and_the_next_command_works(line, monkeypatch):
    made = []

    def answer(self, command):
        if command == "fail":
            raise KeyError("in the debugger")
        return f"{command}: done"

    fails = type("Fails", (), {"answer": answer})
    monkeypatch.setattr(listener, "start_debugger", lambda: made.append(fails()) or made[-1])
    assert ask(line, "debug", "where") == ("where: done",)
    (text,) = ask(line, "debug", "fail")
    assert "KeyError: 'in the debugger'" in text
    assert ask(line, "debug", "up") == ("up: done",)
    assert len(made) == 1  # it knows where it is in the stack


def test_the_frames_of_a_failure_are_kept_for_the_debugger(monkeypatch):
    monkeypatch.setattr(listener, "_trace", None)
    try:
        secret = 42
        raise ValueError("mine")
    except ValueError as error:
        listener.remember(error)
    debugger = listener.start_debugger()
    assert debugger.stack[-1][0].f_locals["secret"] == secret

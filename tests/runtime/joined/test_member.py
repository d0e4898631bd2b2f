"""One rank of a launcher, step by step; the other ranks and PyTorch's group are made up."""

import io
import json
import os
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.runtime import devices
from helpers.runtime import runs as results
from helpers.runtime.devices import GPUs
from helpers.runtime.failure import WorkerError
from helpers.runtime.joined import heartbeat as watch
from helpers.runtime.joined import member
from helpers.runtime.joined.heartbeat import Watch
from helpers.runtime.launcher import Place
from helpers.runtime.plain import encode
from tests.cuda import Cuda


def place(rank=0, **changes) -> Place:
    given = {"launcher": "srun", "local_size": 2, "one_machine": False, "start": "srun 7.0"}
    ranks = {"rank": rank, "world_size": 6, "local_rank": 1}
    return Place(**{**given, **ranks, **changes})


def bare(rank=0, world=1, **changes) -> member.Member:
    """A rank that has joined, with nobody."""
    one, store = object.__new__(member.Member), dist.HashStore()
    given = {"failure": "", "calls": 0, "told": set(), "running": False, "gpu": 5, "group": None}
    given |= {"device": "cpu", "backend": "gloo", "pid": os.getpid(), "made_group": True}
    joined = {"rank": rank, "world_size": world, "store": store, "connections": [store] * 3}
    vars(one).update({**given, **joined, "place": place(rank, local_rank=4), **changes})
    return one


def test_a_process_joins_once_and_a_launch_inside_a_call_starts_its_own_ranks(monkeypatch):
    class Joined:
        def __init__(self, *given):
            self.given, self.pid, self.running = given, os.getpid(), False

    monkeypatch.setattr(member, "_member", None)
    monkeypatch.setattr(member, "Member", Joined)
    monkeypatch.setattr(member, "place", lambda: None)
    assert member.here() is None
    monkeypatch.setattr(member, "place", lambda: "the place")
    one = member.here(True)
    assert one.given == ("the place", True)
    assert member.here() is one
    one.running = True
    assert member.here() is None
    one.running, one.pid = False, os.getpid() + 1  # this process is a fork of the rank
    other = member.here()
    assert other is not one
    assert other.given == ("the place", False)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("there", [False, True])
def test_a_group_is_formed_unless_the_script_has_one_and_each_is_proved(monkeypatch, device, there):
    done, gpu = [], torch.device("cuda", 5)

    def form(backend, *, store, device_id, **how):
        store.set("key", "in a part of its own")
        done.append(("formed", backend, device_id, how))

    monkeypatch.setattr(dist, "is_initialized", lambda: there)
    monkeypatch.setattr(dist, "init_process_group", form)
    monkeypatch.setattr(dist, "new_group", lambda **how: done.append(("new", how)) or "ours")
    monkeypatch.setattr(member, "prove", lambda *group: done.append(("proved", *group)))
    Cuda(monkeypatch, gpus=6).calls = done
    one = bare(2, 3, device=device, backend="the backend")
    assert one.form_group() == "ours"
    assert one.made_group != there
    hours = {"timeout": timedelta(seconds=1800)}
    place = {"rank": 2, "world_size": 3, **hours}
    formed = [("formed", "the backend", gpu if device == "cuda" else None, place), ("proved",)]
    expected = [("set_device", 5)] * (device == "cuda") + ([] if there else formed)
    assert done == [*expected, ("new", {"backend": "gloo", **hours}), ("proved", "ours")]
    assert not one.store.check(["key"])


@pytest.mark.parametrize(("threads", "set_to"), [(None, [4]), ("3", [])])
def test_a_rank_that_joins_has_its_variables_and_its_share_of_the_cores(
    monkeypatch, threads, set_to
):
    """Unless the reader has chosen the number of threads."""
    store, done = SimpleNamespace(clone=lambda: "another"), []
    cpu = SimpleNamespace(device="cpu", backend="gloo", index=0, local_size=2, too_few="")
    for name, answer in (("meet", store), ("GPUs", cpu), ("cores", 8), ("share_key", b"key")):
        monkeypatch.setattr(member, name, lambda *_, answer=answer: answer)
    for name in ("choose_interfaces", "keep"):
        monkeypatch.setattr(member, name, done.append)
    monkeypatch.setattr(member.atexit, "register", done.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: chosen.append(number))
    monkeypatch.setattr(member.Member, "form_group", lambda one: "ours")
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": threads} if threads else {})
    chosen, where = [], place(3)
    one = member.Member(where)
    assert (one.group, one.connections) == ("ours", [store, "another", "another"])
    assert done == [where, b"key", one.leave]
    assert chosen == set_to
    own = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "6", "HELPERS_INSIDE": "srun 7.0"}
    assert own.items() <= os.environ.items()


def test_the_launcher_chooses_the_number_and_the_caller_may_choose_the_cpu(capsys):
    one = bare(0, 3, device="cuda", backend="nccl")
    assert one.choose(3, None) == one.choose(3, "cuda") == ("cuda", "nccl")
    assert one.choose(3, "cpu") == ("cpu", "gloo")
    assert capsys.readouterr().out == ""
    for workers in (2, 2, 4):
        one.choose(workers, None)
    bare(1, 3).choose(2, None)
    bare(0, 1).choose(2, None)
    assert capsys.readouterr().out.splitlines() == [
        "launch: 2 workers asked for, 3 ranks started by srun: 3 ranks",
        "launch: 4 workers asked for, 3 ranks started by srun: 3 ranks",
        "launch: 2 workers asked for, 1 rank started by srun: 1 rank",
    ]
    with pytest.raises(ValueError, match=r"^3 ranks need 3 GPUs, and there are fewer"):
        bare(0, 3).choose(3, "cuda")


HERE = SimpleNamespace(device=torch.device("cpu"))


@pytest.fixture
def alone(monkeypatch):
    """A rank of one, whose numbers stay as they are and whose call has time to end by itself."""
    monkeypatch.setattr(member, "seed_differently", lambda device: None)
    monkeypatch.setattr(watch, "GRACE_SECONDS", 60.0)  # then the process would end
    return bare()


def call(one, fn, live=None, device="cpu", **kwargs):
    how = {"device": device, "backend": "gloo", "live": live, "timeout": 30.0}
    return one.run(fn, kwargs, state=SimpleNamespace(seen=[]), **how)


def test_a_call_gathers_the_results_by_rank_and_the_rows_by_time(alone, monkeypatch, capsys):
    log = [{"rank": 1, "seconds": 1e-9}, {"rank": 1, "seconds": 1e9}]
    other = encode({"result": "another's", "the log": log})
    monkeypatch.setattr(member, "everyones", lambda packed, group: [packed, other])
    monkeypatch.setattr(results, "ROWS_KEPT", 1)
    monkeypatch.setattr(member, "Watch", lambda *of: watched.append(of[1:]) or Watch(*of))
    given, watched = torch.zeros(2), []

    def fn(worker, x):
        x += 1
        worker.log(loss=0.5)
        worker.log(loss=0.25)
        worker.state.seen.append(worker.local_rank)
        print("printed", end="")
        return worker.state.seen, x.sum(), str(worker.device), worker.world_size

    runs = call(alone, fn, live="loss", x=given)
    assert runs[0] == ([4], torch.tensor(2.0), "cpu", 1)
    assert runs[1] == "another's"
    assert given.tolist() == [0.0, 0.0]  # the function has a copy
    assert [row["rank"] for row in runs.records] == [1, 0, 1]
    assert (runs.device, runs.backend, alone.running) == ("cpu", "gloo", False)
    assert 0 < runs.seconds < 60
    assert watched == [(0, 1, 30.0)]
    said = capsys.readouterr().out
    assert "loss: rank 0 0.5 (step 0)" in said
    assert "the last 1 rows are left out" in said
    seeded = []
    monkeypatch.setattr(member, "seed_differently", seeded.append)
    assert call(alone, lambda worker: str(worker.device), device="cuda")[0] == "cuda:5"
    assert seeded == [torch.device("cuda", 5)]


def test_a_call_that_fails_after_a_good_one_fails_and_no_other_begins(alone, monkeypatch, capsys):
    monkeypatch.setattr(member, "everyones", lambda packed, group: [packed])
    monkeypatch.setattr(results, "ROWS_KEPT", 2)
    told = []
    monkeypatch.setattr(member, "record_for_torchrun", told.append)

    def fails(worker):
        for loss in (0.5, 0.25, 0.125):
            worker.log(loss=loss)
        raise ValueError("so")

    assert list(call(alone, lambda worker: 3)) == [3]
    with pytest.raises(WorkerError, match=r"^rank 0 raised ValueError: so") as caught:
        call(alone, fails, live="loss")
    said = capsys.readouterr().out
    assert "loss: rank 0 0.25 (step 1)" in said
    assert "the last 1 rows are left out" in said
    assert told == [caught.value]  # so that torchrun names it too
    assert "in fails" in caught.value.traceback
    assert "in answer" not in caught.value.traceback  # a frame of this package
    with pytest.raises(RuntimeError, match=r"with it \(rank 0 raised ValueError: so\): start"):
        call(alone, lambda worker: 3)


def test_a_result_that_cannot_travel_is_a_failure_of_its_rank(alone):
    """It is found before the others hear that all is well."""
    with pytest.raises(WorkerError, match=r"^rank 0 raised CannotTravel: `result\[0\]` is of type"):
        call(alone, lambda worker: [print])


def test_an_interrupt_ends_the_script_and_is_told_to_the_others(alone):
    def interrupted(worker):
        raise KeyboardInterrupt

    notes, one = member.Notes(0, None), Watch((alone.store,) * 3, 0, 1, None)
    with pytest.raises(KeyboardInterrupt):
        alone.answer(HERE, interrupted, {}, notes, one)
    assert json.loads(alone.store.get("outcome"))["headline"] == "rank 0 raised KeyboardInterrupt"
    assert alone.failure == "rank 0 raised KeyboardInterrupt"
    assert not alone.running


def test_a_complaint_about_another_rank_waits_for_that_rank_s_report(monkeypatch):
    """Without a report, that rank was killed; with one, the complaint is no news."""

    def complains(worker):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(member, "COMPLAINT_SECONDS", 0.01)
    kinds = []
    for reported in (False, True):
        store = dist.HashStore()
        one, other = bare(1, 2), Watch((store,) * 3, 1, 2, None)
        if reported:
            other.decided.set()
        assert one.answer(HERE, complains, {}, member.Notes(1, None), other) is None
        told = json.loads(store.get("outcome"))
        kinds.append((told["kind"], told["rank"]))
        assert "Connection closed by peer" in told["headline"]
    assert kinds == [("died", None), ("exception", 1)]


def test_a_call_runs_with_numbers_of_its_own_and_is_over_after_it(monkeypatch):
    """While it runs, a `launch` inside it starts ranks of its own. Then its text is there."""
    one, seen, kept = bare(), [], torch.get_rng_state()
    text = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", text)
    torch.manual_seed(0)

    def look(worker):
        print("looked")
        seen.append((one.running, torch.initial_seed() == 0))

    try:
        one.answer(HERE, look, {}, member.Notes(0, None), Watch((one.store,) * 3, 0, 1, None))
    finally:
        torch.set_rng_state(kept)
    assert seen == [(True, False)]
    assert text.buffer.getvalue() == b"looked\n"
    assert not one.running


def test_a_copy_shares_no_memory_and_leaves_no_descriptor():
    before, large = len(os.listdir("/proc/self/fd")), torch.ones(1 << 20)
    copy = member.copied({"large": large}, {})["large"]
    large.zero_()
    assert copy.all()
    del copy  # its memory has a descriptor of its own
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("kind", "rank"), [("exception", 0), ("exception", 1), ("died", 0), ("server", None)]
)
def test_on_every_rank_an_error_has_the_traceback_and_its_kind(kind, rank):
    """It prints the traceback of its own exception only, with the exception as the cause."""
    one, mine = bare(0, 2, error=ValueError("so")), (kind, rank) == ("exception", 0)
    report = {"rank": rank, "kind": kind, "headline": "what happened", "traceback": "deep"}
    with pytest.raises(WorkerError) as caught:
        one.fail(report)
    error = caught.value
    assert (error.rank, error.kind, error.traceback) == (rank, kind, "deep")
    assert str(error).splitlines()[0] == one.failure == "what happened"
    assert ("printed its traceback" in str(error)) == (kind == "exception" and not mine)
    assert ("deep" in str(error)) == mine
    assert (error.__cause__ is one.error) == mine


def test_torchrun_s_report_has_the_error(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    member.record_for_torchrun(ValueError("so"))
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    member.record_for_torchrun(ValueError("so"))
    assert "ValueError: so" in json.loads(file.read_text())["message"]["message"]


def test_rows_and_bars_are_shown_with_their_rank(monkeypatch):
    monkeypatch.setattr(results, "ROWS_KEPT", 1)
    shown = []
    screen = SimpleNamespace(
        point=lambda row: shown.append(row),
        progress=lambda *bar: shown.append(bar),
        draw=lambda: shown.append("drawn"),
    )
    row = {"rank": 2, "loss": 0.5, "seconds": 1.5}
    for notes in (member.Notes(2, screen), member.Notes(2, None)):
        notes.post("log", 1.5, {"loss": 0.5})
        notes.post("log", 2.5, {"loss": 0.4})
        notes.post("track", "steps", 3, None)
        assert notes.records == [row]
    assert shown == [row, "drawn", "drawn", (2, "steps", 3, None), "drawn"]


@pytest.fixture
def ended(monkeypatch):
    """How often the process group was destroyed."""
    destroyed = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: destroyed.append(True))
    return destroyed


def test_the_script_s_own_process_group_is_still_the_script_s(ended, monkeypatch):
    for made in (False, True):
        bare(made_group=made).leave()
        assert ended == [True] * made
    monkeypatch.setattr(dist, "is_initialized", lambda: False)  # the script has destroyed it
    bare().leave()
    assert ended == [True]


@pytest.mark.parametrize("changes", [{"failure": "so"}, {"pid": 1}])
def test_after_a_failure_and_in_a_fork_nothing_is_agreed(ended, changes):
    one = bare(1, 2, **changes)
    one.leave()
    assert ended == []
    assert not one.store.check(["leaving"])


def test_rank_0_leaves_last_and_the_others_at_once(ended):
    store = dist.HashStore()
    first = threading.Thread(target=bare(0, 3, store=store).leave)
    first.start()
    bare(2, 3, store=store).leave()
    assert ended == [True]
    first.join(0.1)
    assert first.is_alive()
    bare(1, 3, store=store).leave()
    first.join(60)
    assert ended == [True] * 3


@pytest.mark.timeout(60)
def test_a_call_that_another_rank_never_makes_fails(ended, alone):
    given = {"store": alone.store, "connections": alone.connections, "calls": 3}
    bare(1, 2, **given).leave()
    with pytest.raises(WorkerError, match=r"^rank 1 has ended its script without this call: ev"):
        call(bare(0, 2, **given), lambda worker: 3)


@pytest.mark.timeout(60)
def test_rank_0_waits_no_longer_than_a_while_and_for_no_store_that_is_gone(ended, monkeypatch):
    monkeypatch.setattr(member, "FAREWELL_SECONDS", 0.02)
    bare(0, 2).leave()
    assert ended == [True]

    def gone(*_):
        raise RuntimeError("Connection reset by peer")

    store = dist.HashStore()
    monkeypatch.setattr(dist, "PrefixStore", lambda *_: SimpleNamespace(compare_set=gone))
    bare(0, 2, store=store).leave()
    assert ended == [True, True]


class Given(dist.HashStore):
    """What the other ranks have said is there already."""

    def __init__(self, everyone: list[dict]):
        super().__init__()
        for rank, said in enumerate(everyone):
            self.set(f"gpus/{rank}", json.dumps(said))

    def multi_get(self, keys):
        return [self.get(key) for key in keys]


def choose(monkeypatch, everyone, local_ranks, rank):
    said = everyone[rank]
    properties = SimpleNamespace(uuid=said["only"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: said["count"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(devices.socket, "gethostname", lambda: said["host"])
    where = SimpleNamespace(
        rank=rank, world_size=len(everyone), local_rank=local_ranks[rank], local_size=said["size"]
    )
    return GPUs(where, Given(everyone))


def said(host, count, size=None, only=None):
    return {"host": host, "size": size, "count": count, "only": only}


@pytest.mark.parametrize(
    ("everyone", "local_ranks", "device", "indices", "too_few"),
    [
        # a GPU for each local rank, on two machines
        ([said("a", 2, 2)] * 2 + [said("b", 2, 2)] * 2, [0, 1, 0, 1], "cuda", [0, 1, 0, 1], ""),
        # Slurm does not say how many ranks a machine has: counted by name
        ([said("a", 2)] * 2 + [said("b", 2)], [0, 1, 0], "cuda", [0, 1, 0], ""),
        # one for each task, each its own
        ([said("a", 1, 2, "x"), said("a", 1, 2, "y")], [0, 1], "cuda", [0, 0], ""),
        # the same one shown to both
        ([said("a", 1, 2, "x")] * 2, [0, 1], "cpu", None, "2 ranks and 1 GPU on a: running on"),
        # enough here, too few there: no rank uses one
        (
            [said("a", 2, 2)] * 2 + [said("b", 1, 2, "x")] * 2,
            [0, 1, 0, 1],
            "cpu",
            None,
            "1 GPU on b",
        ),
        ([said("a", 0, 2)] * 2, [0, 1], "cpu", None, ""),
        # a machine without any is named, as one that has too few
        (
            [said("a", 1, 1, "x"), said("b", 0, 1)],
            [0, 0],
            "cpu",
            None,
            "1 rank and 0 GPUs on b: running on the CPU, with gloo",
        ),
    ],
)
def test_all_ranks_come_to_one_answer(monkeypatch, everyone, local_ranks, device, indices, too_few):
    found = [choose(monkeypatch, everyone, local_ranks, rank) for rank in range(len(everyone))]
    assert {gpu.device for gpu in found} == {device}
    assert {gpu.backend for gpu in found} == {"gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"}
    if indices:
        assert [gpu.index for gpu in found] == indices
    assert all(too_few in gpu.too_few for gpu in found)
    assert bool(found[0].too_few) == bool(too_few)
    hosts = [rank["host"] for rank in everyone]
    assert [gpu.local_size for gpu in found] == [hosts.count(host) for host in hosts]

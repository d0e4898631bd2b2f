"""What a rank knows of its own wait, asked while it waits."""

import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from helpers.runtime.launch import launch
from helpers.runtime.local import channel
from helpers.runtime.local.hangs import whereabouts
from helpers.runtime.local.hangs.whereabouts import Observer, Unchanged


def all_gather(worker, late):
    dist.all_gather([torch.ones(2) for _ in range(3)], torch.ones(2))


def from_the_root(worker, late):
    dist.broadcast(torch.ones(2), late)


def objects_from_the_root(worker, late):
    dist.scatter_object_list([None], [1, 2, 3] if worker.rank == late else None, src=late)


def to_the_root(worker, late):
    dist.reduce(torch.ones(2), dst=1)


def message(worker, late):
    if worker.rank == 1:
        dist.recv(torch.ones(2), late)
    elif worker.rank == late:
        dist.send(torch.ones(2), 1)


def asked(worker, call, late):
    """What rank 1 answers while rank `late` keeps it waiting."""
    dist.barrier()
    answers, observer, group = [], Observer(), dist.group.WORLD

    def ask():
        for _ in range(2):
            time.sleep(1)
            answers.append(observer.look(group))

    if worker.rank == 1:
        thread = threading.Thread(target=ask)
        thread.start()
    if worker.rank == late:
        time.sleep(3)
    call(worker, late)
    if worker.rank != 1:
        return None
    thread.join()
    return answers


WAITS = [
    (all_gather, "all_gather", "all_gather", 2, {0, 2}),
    (from_the_root, "broadcast", "broadcast", 2, {2}),
    (objects_from_the_root, "scatter_object_list", "broadcast", 2, {2}),
    (to_the_root, "reduce", "reduce", 2, {0, 2}),
    (message, "recv", "recv", None, {2}),
]


@pytest.fixture(scope="module")
def answers():
    """Of all waits at once: they only wait."""
    with ThreadPoolExecutor(len(WAITS)) as pool:
        calls = {
            call: pool.submit(launch, asked, workers=3, call=call, late=2) for call, *_ in WAITS
        }
    return {call: runs.result()[1] for call, runs in calls.items()}


@pytest.mark.parametrize(("call", "function", "operation", "number", "needs"), WAITS)
def test_a_wait(answers, call, function, operation, number, needs):
    first, second = answers[call]
    assert first.place == second.place == "waiting"
    assert not first.settled
    assert second.settled
    wait = second.wait
    assert (wait.function, wait.operation, wait.number) == (function, operation, number)
    assert wait.needs == needs
    assert wait.members == (0, 1, 2)
    assert second.issued["0"][1] == "barrier"
    assert second.complete
    assert not second.alone  # the thread that asks is beside the listener


def test_a_rank_that_computes():
    def computes(worker):
        observer, answers = Observer(), []
        thread = threading.Thread(target=lambda: answers.append(observer.look(dist.group.WORLD)))
        thread.start()
        while thread.is_alive():
            pass
        return answers[0].place

    assert launch(computes, workers=1)[0] == "running"


def test_operations_that_have_ended_are_recorded_too(monkeypatch):
    """NCCL's recorder can leave them out; other ranks may still wait in them."""

    def dump(with_collectives, only_active):
        return json.dumps({"entries": ["running"] if only_active else ["ended", "running"]})

    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        monkeypatch.setattr(torch._C._distributed_c10d, name, dump, raising=False)
    assert whereabouts.recorded() == ["ended", "running"] * 2


def test_nothing_known_is_never_the_same(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(whereabouts.time, "monotonic", lambda: now[0])
    one = Unchanged()
    told = []
    for value in (None, None, 1, 1, 1, 2, 2, None, None):
        told.append(one.since(value))
        now[0] += 0.6 * whereabouts.SETTLED_SECONDS
    assert told == [False, False, False, False, True, False, False, False, False]


def entry(number, operation="all_reduce", group="0", **changes):
    """As the flight recorder writes it."""
    return {
        "thread_id": str(threading.main_thread().ident),
        "retired": False,
        "state": "scheduled",
        "is_p2p": False,
        "record_id": number,
        "profiling_name": f"gloo:{operation}",
        "process_group": [group, "a description"],
        "collective_seq_id": number,
        "timeout_ms": 2000,
        **changes,
    }


@pytest.mark.parametrize(
    ("operation", "needs", "as_root"),
    [
        *[(name, {4, 2}, {4, 2}) for name in ("all_reduce", "all_gather", "all_to_all", "barrier")],
        *[(name, {2}, set()) for name in ("broadcast", "scatter")],  # for the root
        *[(name, set(), {4, 2}) for name in ("gather", "reduce")],
        ("novel", set(), set()),
    ],
)
def test_ranks_of_a_group_in_any_order(monkeypatch, operation, needs, as_root):
    """Rank 7 of the world waits; the root is the last of the group, rank 2 of the world."""
    everyone = [4, 7, 2]
    monkeypatch.setattr(whereabouts, "members", lambda group: tuple(everyone))
    monkeypatch.setattr(whereabouts, "dist", SimpleNamespace(get_rank=lambda: 7))
    values = {"work": None, "group": SimpleNamespace(group_name="5")}
    values |= {"group_src": 2, "group_dst": 2}
    code = SimpleNamespace(co_name=operation, co_filename="")
    frame = SimpleNamespace(f_code=code, f_locals=values, f_back=None)
    entries = [entry(3, operation, "5")]
    wait = whereabouts.collective_wait(frame, entries)
    assert (wait.operation, wait.members, set(wait.needs)) == (operation, (4, 7, 2), needs)
    assert (wait.number, wait.seconds) == (3, 2.0)
    values |= {"group_src": 1, "group_dst": 1}
    assert set(whereabouts.collective_wait(frame, entries).needs) == as_root
    values |= {"group_src": 2, "group_dst": 2}
    del everyone[0]  # of two ranks, each waits for the other in every call
    assert set(whereabouts.collective_wait(frame, entries).needs) == {2}


def test_the_last_collectives_of_each_group_are_told(monkeypatch):
    monkeypatch.setattr(whereabouts, "LAST", 3)
    entries = [entry(number) for number in (2, 1, 4, 3, 5)]
    entries[2:2] = [entry(9, "barrier", "7"), entry(1, "nccl:x", "7", profiling_name="nccl:x")]
    last = dict.fromkeys((3, 4, 5), "all_reduce")
    entries.append(entry(1, "recv", "7", profiling_name="nccl:recv 0<-1", is_p2p=True))
    numbers = {"0": last, "7": {9: "barrier"}, "nccl:7": {1: "nccl:x"}}  # gloo's are others
    assert whereabouts.issued(entries) == numbers


def test_messages_name_their_peer_by_its_global_rank():
    """Also where the student gives its rank in the group; not if any rank may send."""

    def peers(worker):
        group, found = dist.new_group([0, 2]), []
        if worker.rank == 1:
            return None
        for kind, given in (
            ("send", {"dst": 2, "group_dst": None}),
            ("recv", {"src": None, "group_src": 1}),
            ("recv", {"src": None, "group_src": None}),
            ("recv", {"src": None, "group_src": 0, "tensor": torch.ones(1, device="meta")}),
            ("all_reduce", {"src": 2}),
            ("send", {"dst": 2, "no work": "it has not begun"}),
        ):
            values = {"tensor": torch.ones(1), "group": group, **given}
            if "no work" not in given:
                values["work"] = None
            code = SimpleNamespace(co_name=kind, co_filename="")
            frame = SimpleNamespace(f_code=code, f_locals=values, f_back=None)
            wait = whereabouts.message_wait(frame)
            found.append(wait and (wait.operation, sorted(wait.needs), wait.number, wait.members))
        return found

    assert launch(peers, 3)[0] == [
        *[(kind, [2], None, (0, 2)) for kind in ("send", "recv")],
        *[None] * 4,
    ]


def test_when_a_collective_is_no_wait():
    """It is over, or another thread's, or of another group, or of NCCL; or it has not begun."""

    def waits(worker):
        name = dist.group.WORLD.group_name
        values = {"work": None, "group": None}
        own, other = entry(4, group=name), SimpleNamespace(group_name="of its members")
        cases = [
            ([own], values),
            ([], values),
            ([own], {"group": None}),
            ([entry(4, group=name, retired=True)], values),
            ([own, entry(5, group="8")], values),
            ([entry(4, group=name, thread_id="1")], values),
            ([own, entry(9, group="8", thread_id="1")], values),
            ([entry(4, group=name, profiling_name="nccl:all_reduce")], values),
            ([entry(4, group="of its members")], {"work": None, "group": other}),
        ]
        found = []
        for entries, given in cases:
            code = SimpleNamespace(co_name="all_reduce", co_filename="")
            frame = SimpleNamespace(f_code=code, f_locals=given, f_back=None)
            wait = whereabouts.collective_wait(frame, entries)
            found.append(wait and (wait.number, sorted(wait.needs), wait.group == name))
        return found

    found = launch(waits, 3)[1]
    assert found == [(4, [0, 2], True), *5 * [None], (4, [0, 2], True), None, None]


def nccl(number, operation="all_reduce", group="0", **changes):
    changes = {"timeout_ms": 1_800_000, "record_id": 10 * int(group[0]) + number, **changes}
    return entry(number, group=group, **{"profiling_name": f"nccl:{operation}", **changes})


def over(number, **changes):
    return nccl(number, **{"retired": True, **changes})


@pytest.mark.parametrize(
    ("entries", "number", "kind"),
    [
        ([], None, None),
        ([entry(1)], None, None),  # gloo's
        ([over(1), over(2, retired=False, state="completed")], None, None),
        ([over(1), nccl(2), nccl(3, "broadcast")], 2, "all_reduce"),
        ([over(1), nccl(2, "all_reduce_barrier", thread_id="7")], 2, "all_reduce"),
        ([nccl(4, "_all_gather_base")], 4, "all_gather"),
        ([nccl(1), nccl(1), over(1, operation="coalesced")], None, None),  # the last has the events
        ([nccl(1, is_p2p=True), nccl(2)], None, None),  # it waits for a message
        ([nccl(3), nccl(5, group="1", record_id=2)], 5, "all_reduce"),  # the older one
        ([nccl(3, group="0x")], None, None),  # a name that may come back
    ],
)
def test_a_gpu_is_in_its_oldest_unfinished_collective(monkeypatch, entries, number, kind):
    groups = [SimpleNamespace(group_name=name) for name in ("0", "1", "0x")]
    world = SimpleNamespace(pg_map=groups)
    monkeypatch.setattr(whereabouts, "distributed_c10d", SimpleNamespace(_world=world))
    monkeypatch.setattr(whereabouts, "members", lambda group: (4, 7, int(group.group_name)))
    monkeypatch.setattr(whereabouts, "dist", SimpleNamespace(get_rank=lambda: 7))
    wait = whereabouts.gpu_wait(entries)
    assert (wait and (wait.number, wait.operation)) == (number and (number, f"nccl:{kind}"))
    if wait:
        name = "1" if number == 5 else "0"
        assert wait.function == f"NCCL's {kind} (number {number} of group {name})"
        assert (wait.group, wait.needs, wait.seconds) == (f"nccl:{name}", {4, int(name)}, 1800)


def test_both_recorders_are_read(monkeypatch):
    """A rank's record is complete if both begin with their first collective."""
    found = {"_dump_fr_trace_json": [entry(3, record_id=0)], "_dump_nccl_trace_json": [nccl(2)]}
    for name, entries in found.items():
        answer = json.dumps({"entries": entries})
        monkeypatch.setattr(
            torch._C._distributed_c10d, name, lambda *_, it=answer: it, raising=False
        )
    monkeypatch.setattr(whereabouts, "place_of", lambda frame: "idle")
    observer, group = Observer(), object()
    monkeypatch.setattr(whereabouts, "dist", SimpleNamespace(group=SimpleNamespace(WORLD=group)))
    monkeypatch.setattr(observer.sign, "since", lambda *_: True)
    answer = observer.look(group)
    assert answer.issued == {"0": {3: "all_reduce"}, "nccl:0": {2: "nccl:all_reduce"}}
    assert not answer.complete
    found = {"entries": [nccl(2, record_id=0)]}
    monkeypatch.setattr(
        torch._C._distributed_c10d, "_dump_nccl_trace_json", lambda *_: json.dumps(found)
    )
    assert observer.look(group).complete


@pytest.mark.parametrize(
    ("place", "seconds", "wait", "said"),
    [
        ("running", whereabouts.SPINNING_SECONDS, "NCCL's", "waiting"),  # loss.item()
        ("running", whereabouts.SPINNING_SECONDS, None, "running"),
        ("waiting", whereabouts.SETTLED_SECONDS, "NCCL's", "waiting"),  # dist.barrier()
        ("idle", whereabouts.SETTLED_SECONDS, None, "idle"),  # it has returned
    ],
)
def test_a_rank_that_spins_waits_for_its_gpu(monkeypatch, place, seconds, wait, said):
    observer, group, asked = Observer(), object(), []
    monkeypatch.setattr(whereabouts, "dist", SimpleNamespace(group=SimpleNamespace(WORLD=group)))
    monkeypatch.setattr(observer.sign, "since", lambda _, s: asked.append(s) or True)
    monkeypatch.setattr(whereabouts, "place_of", lambda frame: place)
    monkeypatch.setattr(whereabouts, "recorded", list)
    monkeypatch.setattr(whereabouts, "wait_of", lambda *_: None)
    monkeypatch.setattr(whereabouts, "gpu_wait", lambda _: wait)
    answer = observer.look(group)
    assert (answer.place, answer.wait, answer.settled) == (said, wait, True)
    assert asked == [seconds]


def test_another_default_group_or_a_private_part_that_is_missing_proves_nothing(monkeypatch):
    observer = Observer()
    monkeypatch.setattr(observer.sign, "since", lambda *_: True)
    monkeypatch.setattr(whereabouts, "place_of", lambda frame: "idle")
    monkeypatch.setattr(whereabouts, "sequence_numbers", tuple)
    monkeypatch.setattr(whereabouts, "recorded", lambda: [entry(7, record_id=3)])
    group = object()
    here = SimpleNamespace(group=SimpleNamespace(WORLD=group))
    monkeypatch.setattr(whereabouts, "dist", here)
    answer = observer.look(group)
    assert (answer.place, answer.settled, answer.complete) == ("idle", True, False)
    assert (answer.wait, answer.issued) == (None, {"0": {7: "all_reduce"}})
    for other in (None, object()):
        assert not observer.look(other).settled
    monkeypatch.setattr(whereabouts, "recorded", lambda: [])
    assert observer.look(group).complete
    monkeypatch.setattr(whereabouts, "place_of", lambda frame: 1 / 0)
    assert observer.look(group).place == "running"


def stack(*frames):
    """The innermost of these (file, function) frames."""
    frame = None
    for file, name in reversed(frames):
        code = SimpleNamespace(co_filename=file, co_name=name)
        frame = SimpleNamespace(f_code=code, f_back=frame)
    return frame


C10D, CELL = distributed_c10d.__file__, ("/x/cell.py", "train")
LOGGER = (C10D.replace("distributed_c10d", "c10d_logger"), "wrapper")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([(C10D, "all_reduce"), LOGGER, CELL], "waiting"),
        ([(channel.__file__, "fill"), CELL], "idle"),
        ([(socket.__file__, "recv_fds"), (channel.__file__, "fill")], "idle"),
        ([(socket.__file__, "recv"), CELL], "running"),  # the student's own connection
        ([CELL, (C10D, "run")], "running"),
    ],
)
def test_where_the_innermost_frame_is(frames, place):
    assert whereabouts.place_of(stack(*frames)) == place


def test_the_outermost_function_that_the_student_called_is_named():
    """Not one that called the student's function."""
    frames = [(C10D, "all_gather"), LOGGER, (C10D, "all_gather_object"), LOGGER, CELL]
    assert whereabouts.called(stack(*frames, (C10D, "run"))) == "all_gather_object"
    assert whereabouts.called(stack((C10D, "recv"))) == "recv"


def test_a_second_thread_may_still_send():
    """This test's thread and the one that asks are two already."""
    found, release = [], threading.Event()

    def asks():
        thread = threading.Thread(target=lambda: found.append(whereabouts.alone()))
        thread.start()
        thread.join()

    known = {threading.main_thread().ident}
    if set(sys._current_frames()) == known:  # no other test has left a thread
        asks()
        assert found.pop()
    beside = threading.Thread(target=release.wait)
    beside.start()
    asks()
    release.set()
    beside.join()
    assert found == [False]

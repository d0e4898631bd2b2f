"""When ranks are asked where they are; what proves a hang, and what does not. All made up here."""

import socket
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from helpers.runtime.local.channel import Channel, readable
from helpers.runtime.local.hangs import deadlock
from helpers.runtime.local.hangs.deadlock import Looks, explain, prove
from helpers.runtime.local.hangs.whereabouts import SETTLED_SECONDS, Answer, Wait


def waits(operation, number, needs, *, group="0", issued=(), seconds=1800.0, **other):
    """A rank that waits in its group's collective of this number, having called `issued`."""
    called = dict(enumerate([*issued, operation], 1)) if number else {}
    wait = Wait(operation, operation, group, (0, 1, 2), number, frozenset(needs), seconds)
    state = {"settled": True, "alone": True, "complete": True, "issued": {group: called}}
    return Answer("waiting", wait=wait, **{**state, **other})


def idle(*issued, group="0", **other):
    state = {"settled": True, "alone": True, "complete": True}
    called = {group: dict(enumerate(issued, 1))}
    return Answer("idle", **{**state, "issued": called, **other})


MISMATCH = {0: waits("all_reduce", 1, [1]), 1: waits("broadcast", 1, [0])}
RETURNED = {0: waits("barrier", 2, [1], issued=["barrier"]), 1: idle("barrier")}
MESSAGE = {0: waits("recv", None, [1], quiet=True), 1: idle(quiet=True)}


CYCLE = {  # ranks 0 and 1 wait for each other, and rank 2 for one of them
    0: waits("all_reduce", 1, [1], group="1"),
    1: waits("all_reduce", 1, [0], group="2"),
    2: waits("barrier", 1, [1]),
}
WENT_ON = {  # rank 1, as root, did not have to wait for its broadcast
    0: waits("all_reduce", 1, [1, 2]),
    1: Answer("running", issued={"0": {1: "broadcast", 2: "barrier"}}),
}
WAITS_ALONE = {  # rank 2 may still join rank 1
    **{0: waits("all_reduce", 1, [1], group="1"), 1: waits("all_reduce", 1, [2], group="2")},
    2: Answer("running"),
}


@pytest.mark.parametrize(
    ("answers", "returned", "stuck", "said"),
    [
        (
            MISMATCH,
            set(),
            {0, 1},
            "rank 0 waits in all_reduce, but rank 1 called broadcast instead",
        ),
        (RETURNED, {1}, {0}, "a hang: rank 0 waits in barrier for rank 1, which has returned"),
        (MESSAGE, {1}, {0}, "rank 0 waits in recv for rank 1, which has returned"),
        (CYCLE, set(), {0, 1, 2}, "rank 2 waits in barrier for rank 1"),
        (WENT_ON, set(), {0}, "rank 0 waits in all_reduce, but rank 1 called broadcast instead"),
        (
            {r: waits("barrier", 1, [3]) for r in (0, 1, 2)} | {3: idle()},
            *({3}, {0, 1, 2}),
            "a hang: ranks 0, 1 and 2 wait in barrier for rank 3, which has returned",
        ),
    ],
)
def test_a_proof(answers, returned, stuck, said):
    found = prove(answers, returned)
    assert set(found) == stuck
    assert said in explain(found, returned)


@pytest.mark.parametrize(
    ("answers", "returned"),
    [
        ({0: waits("barrier", 1, [1]), 1: waits("barrier", 1, [0])}, set()),  # the same: slow
        ({0: waits("barrier", 1, [1])}, set()),  # rank 1 has not answered
        ({0: waits("barrier", 1, [1])}, {1}),  # nor since it has returned
        ({**RETURNED, 1: idle("barrier", alone=False)}, {1}),  # a thread of it goes on
        ({**RETURNED, 1: idle("barrier", settled=False)}, {1}),
        ({**RETURNED, 1: Answer("running")}, {1}),
        (RETURNED, set()),  # idle, but its result has not come
        ({**RETURNED, 1: idle("barrier", "barrier")}, {1}),  # it has done its part
        ({**RETURNED, 1: idle(complete=False)}, {1}),  # it is not known what it has done
        ({0: waits("all_reduce", 1, [1], alone=False), 1: waits("broadcast", 1, [])}, set()),
        ({0: waits("all_reduce", 1, [1], seconds=5.0), 1: waits("broadcast", 1, [])}, set()),
        ({0: waits("all_reduce", 1, []), 1: waits("broadcast", 1, [])}, set()),
        ({0: waits("all_reduce", 1, [1]), 1: waits("novel", 1, [0])}, set()),
        ({**MESSAGE, 0: waits("recv", None, [1], quiet=False)}, {1}),  # it may be on its way
        ({**MESSAGE, 1: idle(quiet=False)}, {1}),
        ({**MESSAGE, 1: Answer("running", quiet=True)}, set()),
        (WAITS_ALONE, set()),
    ],
)
def test_no_proof(answers, returned):
    assert prove(answers, returned) == {}


def test_the_whole_sentence_names_what_each_student_s_function_called():
    """Not gloo's name, where the other rank still is in that call."""
    waiting = dict(MISMATCH)
    call = waiting[1].wait
    waiting[1] = replace(waiting[1], wait=replace(call, function="scatter_object_list"))
    assert explain(prove(waiting, set()), set()) == (
        "a hang: rank 0 waits in all_reduce, but rank 1 called scatter_object_list instead; "
        "rank 1 waits in scatter_object_list, but rank 0 called all_reduce instead"
    )
    waiting[1] = waits("barrier", 2, [0], issued=["broadcast"])
    assert explain(prove(waiting, set()), set()) == (
        "a hang: rank 0 waits in all_reduce, but rank 1 called broadcast instead; "
        "rank 1 waits in barrier for rank 0"
    )


def test_the_lowest_rank_that_explains_a_wait_is_named():
    answers = {2: waits("barrier", 1, [0, 1, 3]), 3: idle(), 1: idle(), 0: Answer("running")}
    assert prove(answers, {1, 3})[2].other == 1


@pytest.mark.parametrize(("seconds", "proved"), [(600.0, True), (599.0, False)])
def test_a_wait_that_gives_up_by_itself_is_left_to_it(seconds, proved):
    answers = {**RETURNED, 0: waits("barrier", 2, [1], issued=["barrier"], seconds=seconds)}
    assert bool(prove(answers, {1})) == proved


def test_a_rank_that_has_done_nothing_yet_is_known_if_its_record_is_complete():
    answers = {0: waits("barrier", 1, [1]), 1: idle()}
    assert set(prove({**answers, 1: idle("barrier", group="7")}, {1})) == {0}
    assert prove({**answers, 1: idle("barrier", group="7", complete=False)}, {1}) == {}
    assert prove({**answers, 0: replace(answers[0], wait=None)}, {1}) == {}
    assert set(prove({**RETURNED, 1: idle("barrier", complete=False)}, {1})) == {0}  # it is enough
    unsettled = waits("barrier", 1, [1], settled=False)
    assert prove({**answers, 0: unsettled}, {1}) == {}
    assert prove({**answers, 0: replace(answers[0], place="running")}, {1}) == {}


@pytest.fixture
def two():
    """Two ranks, and for each the end at which it would be asked."""
    ranks, theirs = [], []
    for rank in range(2):
        here, there = map(Channel, socket.socketpair())
        ranks.append(SimpleNamespace(rank=rank, status=None, line=here))
        theirs.append(there)
    yield SimpleNamespace(ranks=ranks), theirs
    for process, there in zip(ranks, theirs, strict=True):
        process.line.close()
        there.close()


def asked(there) -> int:
    """How often a rank was asked since the last time."""
    return len(list(there.messages())) if readable(there) else 0


def answer(looks, theirs, answers):
    for rank, one in answers.items():
        theirs[rank].send(one)
        assert looks.take(looks.processes.ranks[rank])


def test_ranks_are_asked_when_it_is_time_and_again_once_they_have_answered(two, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(deadlock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    processes, theirs = two
    looks = Looks(processes)
    assert looks.prove(set()) == {}
    assert [asked(there) for there in theirs] == [0, 0]
    now[0] += deadlock.QUIET_SECONDS
    assert looks.prove(set()) == {}
    assert [asked(there) for there in theirs] == [1, 1]
    answer(looks, theirs, {0: MISMATCH[0]})
    assert looks.prove(set()) == {}  # rank 1 may still answer
    answer(looks, theirs, {1: MISMATCH[1]})
    assert set(looks.prove(set())) == {0, 1}
    now[0] += deadlock.APART_SECONDS
    assert looks.prove(set()) == {}
    assert [asked(there) for there in theirs] == [1, 1]
    now[0] += 1.5 * deadlock.ANSWER_SECONDS
    assert looks.prove(set()) == {}  # what they said before no longer counts
    answer(looks, theirs, {0: MISMATCH[0]})
    now[0] += deadlock.APART_SECONDS
    assert looks.prove(set()) == {}
    assert [asked(there) for there in theirs] == [1, 0]  # rank 1 still owes an answer


def test_a_sign_of_life_puts_the_look_off(two, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(deadlock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    processes, theirs = two
    looks = Looks(processes)
    now[0] += 0.9 * deadlock.QUIET_SECONDS
    looks.sign_of_life()
    now[0] += 0.9 * deadlock.QUIET_SECONDS
    looks.prove(set())
    assert [asked(there) for there in theirs] == [0, 0]


def test_a_rank_that_never_answers_does_not_hold_up_the_proof(two, monkeypatch):
    """It may be in compiled code that keeps the interpreter's lock."""
    now = [100.0]
    monkeypatch.setattr(deadlock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    processes, theirs = two
    third = SimpleNamespace(rank=2, status=None, line=SimpleNamespace(post=lambda _: None))
    processes.ranks = [*processes.ranks, third]
    looks = Looks(processes)
    looks.due = now[0]
    looks.ask()
    answer(looks, theirs, MISMATCH)
    for seconds, proved in ((0.9, set()), (1.1, {0, 1})):
        now[0] = 100.0 + seconds * deadlock.ANSWER_SECONDS
        assert set(looks.prove(set())) == proved


def test_it_counts_which_ranks_have_returned(two):
    processes, theirs = two
    looks = Looks(processes)
    looks.due = time.monotonic() + 1000
    answer(looks, theirs, RETURNED)
    assert looks.prove(set()) == {}
    assert set(looks.prove({1})) == {0}


def test_ended_ranks_are_not_asked_and_their_line_is_no_longer_heard(two):
    processes, theirs = two
    processes.ranks[1].status = 0
    looks = Looks(processes)
    looks.due = 0.0
    looks.prove(set())
    assert [asked(there) for there in theirs] == [1, 0]
    theirs[1].close()
    assert not looks.take(processes.ranks[1])
    processes.ranks[1].status = None  # the news of its end has not come yet
    looks.due = 0.0
    looks.ask()
    assert looks.asked == {0, 1}


def test_a_hang_is_proved_within_seconds():
    """A rank counts as settled at the second look, and the third proves it at the latest."""
    assert SETTLED_SECONDS < deadlock.APART_SECONDS
    assert deadlock.ANSWER_SECONDS < deadlock.APART_SECONDS
    assert deadlock.QUIET_SECONDS + 3 * deadlock.APART_SECONDS <= 5


def test_waits_on_gpus_are_told_from_others_until_a_rank_leaves_them(two):
    processes, theirs = two
    looks = Looks(processes)
    answer(looks, theirs, {0: waits("nccl:all_reduce", 1, [1]), 1: waits("all_reduce", 1, [0])})
    assert looks.on_gpus() == {0: "nccl:all_reduce"}
    answer(looks, theirs, {0: idle()})
    assert looks.on_gpus() == {}

"""What proves a hang, and what does not, from answers made up for it."""

from dataclasses import replace

import pytest

from helpers.runtime.local.hangs.deadlock import explain, prove
from helpers.runtime.local.hangs.whereabouts import Answer, Wait


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


def test_two_that_called_different_things():
    stuck = prove(MISMATCH, set())
    assert set(stuck) == {0, 1}
    assert "rank 0 waits in all_reduce, but rank 1 called broadcast" in explain(stuck, set())


def test_one_that_has_returned():
    stuck = prove(RETURNED, {1})
    assert set(stuck) == {0}
    said = explain(stuck, {1})
    assert said == "a hang: rank 0 waits in barrier for rank 1, which has returned"


def test_a_message_from_one_that_has_returned():
    assert set(prove(MESSAGE, {1})) == {0}


def test_a_cycle_and_who_waits_for_it():
    answers = {
        0: waits("all_reduce", 1, [1], group="1"),
        1: waits("all_reduce", 1, [0], group="2"),
        2: waits("barrier", 1, [1]),
    }
    stuck = prove(answers, set())
    assert set(stuck) == {0, 1, 2}


def test_one_that_may_still_come_saves_all_that_wait_for_it():
    answers = {
        0: waits("all_reduce", 1, [1], group="1"),
        1: waits("all_reduce", 1, [2], group="2"),
        2: Answer("running"),
    }
    assert prove(answers, set()) == {}


def test_one_that_went_on_after_something_else():
    """Rank 1, as root, did not have to wait for its broadcast."""
    answers = {
        0: waits("all_reduce", 1, [1, 2]),
        1: Answer("running", issued={"0": {1: "broadcast", 2: "barrier"}}),
    }
    assert set(prove(answers, set())) == {0}


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
    ],
)
def test_no_proof(answers, returned):
    assert prove(answers, returned) == {}


def test_ranks_with_the_same_to_say_are_told_together():
    answers = {r: waits("barrier", 1, [3]) for r in (0, 1, 2)} | {3: idle()}
    said = explain(prove(answers, {3}), {3})
    assert said == "a hang: ranks 0, 1 and 2 wait in barrier for rank 3, which has returned"


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

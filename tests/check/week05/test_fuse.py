"""Messages posted together: the solution passes, each mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.oracle import NotRight
from helpers.check.week05.fuse import drawn, judge_groups, judge_order
from helpers.plans.schedules import (
    RECEIVE,
    SEND,
    Action,
    Message,
    one_f_one_b,
    with_messages,
)
from notebooks.solutions import week05
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew


def alone(steps):
    return [[step] for step in steps]


def receives_first(steps):
    """Single messages, with each receive before the send that stands before it."""
    groups = alone(steps)
    for k in range(len(groups) - 1):
        first, second = groups[k][0], groups[k + 1][0]
        if isinstance(first, Message) and isinstance(second, Message) and first.kind == SEND:
            groups[k : k + 2] = [[second], [first]]
    return groups


def one_direction(steps, *, same=True):
    """Fuses messages that go one way: an activation sent and the next one received."""
    groups = []
    for step in steps:
        last = groups[-1][-1] if groups else None
        fits = isinstance(step, Message) and isinstance(last, Message) and last.forward
        if fits and step.forward == same:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def moved(kind, forward):
    """Sends in one direction before all computations; receives after all of them."""

    def solve(steps):
        own = [
            s for s in steps if isinstance(s, Message) and (s.kind, s.forward) == (kind, forward)
        ]
        others = [step for step in steps if step not in own]
        return alone(own + others if kind == SEND else others + own)

    return solve


def with_the_computation(steps):
    groups = week05.fuse_messages(steps)
    return [[*a, *b] for a, b in zip(groups[::2], groups[1::2], strict=False)]


def turned(steps):
    computations = [step for step in steps if isinstance(step, Action)]
    later = iter(reversed(computations))
    return [[next(later) if isinstance(step, Action) else step] for step in steps]


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (alone, "One message at a time"),
        (receives_first, "One message at a time"),
        (one_direction, "but not those"),
        (moved(SEND, True), "sends what it has computed"),
        (moved(SEND, False), "sends what it has computed"),
        (moved(RECEIVE, True), "How late may a receive be"),
        (moved(RECEIVE, False), "How late may a receive be"),
        (with_the_computation, "alone in its group"),
        (turned, "stays as it is"),
        (lambda steps: week05.fuse_messages(steps)[:-1], "keep the last group"),
        (lambda steps: [*week05.fuse_messages(steps), [steps[-1]]], "in one group"),
        (lambda steps: steps, "a list of lists"),
        (lambda steps: [[]], "a list of lists"),
        (lambda steps: [["F0"]], "a list of lists"),
        (lambda steps: None, "a list of lists"),
    ],
)
def test_fuse_messages(mistake, hint):
    verdict = check.fuse_messages(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_the_solution_passes_and_the_stub_is_told_apart():
    verdict = check.fuse_messages(week05.fuse_messages)
    assert verdict, verdict

    def stub(steps):
        raise NotImplementedError

    assert check.fuse_messages(stub).status == "not written yet"


def test_one_of_the_two_exchanges_is_enough():
    """An activation sent down with a gradient received; gradients are sent alone."""
    assert check.fuse_messages(lambda steps: one_direction(steps, same=False))


def test_the_order_inside_a_group_is_free():
    """In a group, the order is free: its messages are posted together."""

    def solve(steps):
        groups = week05.fuse_messages(steps)
        return [sorted(g, key=lambda s: s.kind == RECEIVE) if len(g) > 1 else g for g in groups]

    assert check.fuse_messages(solve)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.fuse_messages, week05.fuse_messages))


def test_grading_draws_schedules_of_each_kind():
    schedules = [drawn(random.Random(secret)) for secret in range(80)]
    assert {s.name for s in schedules} == {"GPipe", "1F1B", "ZB-H1"}
    assert {s.ranks for s in schedules} == {2, 3, 4, 5}
    assert all(s.ranks <= s.micro_batches <= 9 for s in schedules)
    assert {s.micro_batches - s.ranks for s in schedules} == set(range(8))
    with drawn_from(3):
        asked_for = asked(check.fuse_messages, week05.fuse_messages)
    assert len(asked_for) == 5 + 3


def test_a_rank_s_steps_are_a_list_of_its_own():
    def solve(steps):
        groups = week05.fuse_messages(steps)
        steps.clear()
        return groups

    verdict = check.fuse_messages(solve)
    assert verdict, verdict


def test_a_mistake_in_one_case_alone_is_found():
    found = found_alone(check.fuse_messages, week05.fuse_messages,
                        lambda steps: week05.fuse_messages(steps)[:-1])  # fmt: skip
    assert found == [
        "GPipe of 2 ranks, m = 2: rank 0: the step 'B1 of stage 0' is missing",
        "1F1B of 4 ranks, m = 8: rank 0: the step 'B7 of stage 0' is missing",
        "1F1B of 2 ranks, m = 3: rank 0: the step 'B2 of stage 0' is missing",
        "1F1B of 3 ranks, m = 2: rank 0: the step 'B1 of stage 0' is missing",
        "ZB-H1 of 3 ranks, m = 5: rank 0: the step 'W4 of stage 0' is missing",
    ]


def programs(ranks=2, micros=3):
    return with_messages(one_f_one_b(ranks, micros), ahead=0)


def refused(answer, given):
    with pytest.raises(NotRight) as wrong:
        judge_groups(answer, given)
    return wrong.value


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda groups: None, "rank 1: returned NoneType"),
        (lambda groups: [*groups, []], "rank 1: a group is []"),
        (lambda groups: [*groups, "F0"], "rank 1: a group is 'F0'"),
        (lambda groups: [*groups, [1]], "rank 1: a group holds other things than steps"),
        (lambda groups: [*groups[:1], *groups[2:]], "rank 1: the step 'F0 of stage 1' is missing"),
        (lambda groups: [*groups, groups[-1]], "is there twice"),
        (lambda groups: [*groups, groups[1]], "rank 1: the step 'F0 of stage 1' is there twice"),
        (lambda groups: [[*groups[0], *groups[1]], *groups[2:]],
         "rank 1: 'F0 of stage 1' shares a group"),
        (lambda groups: [groups[0], groups[2], groups[1], *groups[3:]],
         "rank 1: the computations are in another order"),
    ],
)  # fmt: skip
def test_what_is_wrong_on_the_last_rank_is_found(change, finding):
    given = programs()
    right = [week05.fuse_messages(steps) for steps in given]
    judge_groups(right, given)
    assert finding in refused([right[0], change(right[1])], given).finding


def test_messages_may_move_between_computations_and_no_further():
    """Rank 0 of two: F0 send F1 send receive B0 …; each message moves to every place."""
    given = programs()
    steps = list(given[0])
    later, earlier = 0, 0
    for step in steps:
        if isinstance(step, Action):
            continue
        needs = next(
            k for k, other in enumerate(steps)
            if isinstance(other, Action) and other.micro == step.micro
            and str(other)[0] == ("F" if step.forward else "B")
        )  # fmt: skip
        for place in range(len(steps)):
            moved = [s for s in steps if s is not step]
            moved.insert(place, step)
            at = moved.index(steps[needs])
            wrong = place < at if step.kind == SEND else place > at
            if not wrong:
                judge_order(moved, steps, 0)
                continue
            with pytest.raises(NotRight, match="is before" if step.kind == SEND else "is after"):
                judge_order(moved, steps, 0)
            later, earlier = later + (step.kind != SEND), earlier + (step.kind == SEND)
    assert later > 5 < earlier


def test_messages_that_wait_for_each_other_are_listed():
    given = programs()
    wrong = refused([alone(steps) for steps in given], given)
    assert wrong.finding.startswith("these messages wait for each other for ever\n  rank 0 ")
    assert "\n  rank 1 " in wrong.finding
    assert "could wait together" in wrong.hint

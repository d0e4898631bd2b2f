"""Messages posted together: the solution passes, each mistake gets its own hint."""

import pytest

from helpers import check
from helpers.plans.schedules import RECEIVE, SEND, Action, Message
from notebooks.solutions import week05
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

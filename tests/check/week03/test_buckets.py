"""The judges of gradients in buckets, each alone, on reports that are written by hand."""

from copy import deepcopy

import pytest
import torch

from helpers.check.oracle import NotRight
from helpers.check.watch import Event
from helpers.check.week03.buckets import (
    HANG,
    Net,
    contents,
    gradients,
    hint_failure,
    judge_buckets,
    judge_messages,
    kind_of,
    loss_of,
    trained,
)

OWN = [torch.tensor([[1.0, -2.0], [3.0, 0.5]]), torch.tensor([[0.5, 4.0], [-1.0, 2.0]])]
OWN = [{"w": gradient.double()} for gradient in (*OWN, torch.eye(2))]
TOTAL = sum(own["w"] for own in OWN)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (None, "no gradient"),
        (TOTAL / 3, "right"),
        (TOTAL / 3 + 1e-11, "something else"),
        (TOTAL / 3 + 1e-13, "right"),
        ((TOTAL / 3).flatten(), "something else"),
        (TOTAL, "the sum over the ranks"),
        (TOTAL / 9, "the mean, divided by N again"),
        (OWN[2]["w"], "this rank's own gradient"),
        (OWN[2]["w"] / 3, "this rank's own gradient, divided by N"),
        (OWN[1]["w"], "something else"),
        (0 * TOTAL, "zeros"),
    ],
)
def test_the_kind_of_a_gradient_on_rank_2(found, kind):
    assert kind_of(found, "w", OWN, 2) == kind


def test_what_lies_in_a_message():
    own = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0], [4.0], [5.0]])}
    own = {name: tensor.double() for name, tensor in own.items()}
    row = torch.tensor([3.0, 4.0, 5.0, 0.5, 1.0, 9.0, 9.0, 9.0, 1.0, 2.0, 3.0, 4.0]).double()
    assert contents(row, own, 2) == ["b", "a", "?", "a", "?"]
    assert contents(row[:5], own, 3) == ["b", "?"]  # a half is not a third
    assert contents(row[:0], own, 2) == []


def test_gradients_are_added_over_steps_and_only_these():
    torch.manual_seed(3)
    model = Net().double()
    assert "frozen.weight" not in trained(model)
    assert len(trained(model)) == 7
    assert not any(name.startswith("outer.weight") for name in trained(model))  # one parameter
    assert sum(p.nbytes for p in trained(model).values()) == 1304
    first, second = (gradients(model, 1, [step]) for step in (0, 1))
    both = gradients(model, 1, [0, 1])
    for name, found in both.items():
        torch.testing.assert_close(found, first[name] + second[name], rtol=0, atol=1e-13)
    assert not torch.equal(first["head.weight"], gradients(model, 0, [0])["head.weight"])
    loss = loss_of(model, 1, 0)
    assert loss.item() == loss_of(model, 1, 0).item()


SIZES = {"a": 100, "b": 300, "c": 200}  # bytes; a backward has them in the order c, b, a
MESSAGES = [("c", 200), ("b", 300), ("a", 100)]


def events(*kinds):
    """ "c" is a gradient's name, a number a message of so many bytes."""
    words = {"over": "backward over", "wait": "wait"}
    return [
        Event("message", "all_reduce", kind)
        if isinstance(kind, int)
        else Event(words[kind])
        if kind in words
        else Event("gradient", kind)
        for kind in kinds
    ]


def report(**changes):
    """One step of one rank, with buckets of 250 bytes: c and b in the backward, a after it."""
    right = {
        "events": events("c", "b", 500, "a", "over", 100, "wait", "wait"),
        "unwaited": 0,
        "kinds": dict.fromkeys(SIZES, "right"),
        "sent": [["c", "b"], ["a"]],
        "nbytes": dict(SIZES),
    }
    return {**right, **changes}


def runs(ranks=3, **changes):
    """Three right steps on each rank, with these changes on the last rank in the last step."""
    found = [{"finish": "a function", "steps": [report() for _ in range(3)]} for _ in range(ranks)]
    found[-1]["steps"][2] |= changes
    return found


def told(words, hint, function, *arguments):
    with pytest.raises(NotRight) as error:
        function(*arguments)
    assert words in error.value.finding
    assert hint in error.value.hint, error.value.hint


def test_what_is_right_passes():
    judge_buckets(runs(), 250, False)
    judge_buckets(runs(1), 250, True)


def test_each_rank_must_return_a_function():
    found = runs()
    found[2]["finish"] = "NoneType"
    told("rank 2 returned NoneType", "Return a function", judge_buckets, found, 250, False)


def test_the_last_step_of_the_last_rank_counts():
    wrong = {"kinds": {**report()["kinds"], "b": "zeros"}}
    told("step 3, rank 2: `.grad`", "Steps 1 to 2 are right", judge_buckets, runs(**wrong), 250, 0)
    told("before 1 of the all-reduces", "only starts", judge_buckets, runs(unwaited=1), 250, 0)
    late = {"events": events("c", "b", "a", "over", 600, "wait")}
    told("in step 3 rank 2\n  sent 600", "Which hook runs", judge_buckets, runs(**late), 250, 0)
    second = runs()
    second[1]["steps"][1] |= wrong
    told("step 2, rank 1", "Step 1 is right", judge_buckets, second, 250, 0)


def first_step(kinds="right", earlier=False, **changes):
    """Judge runs whose ranks all have these gradients in the first step."""
    found = runs()
    for run in found:
        every = kinds if isinstance(kinds, dict) else dict.fromkeys(SIZES, kinds)
        run["steps"][0] |= {"kinds": every, **deepcopy(changes)}
    judge_buckets(found, 250, earlier)


SUM, AGAIN = "the sum over the ranks", "the mean, divided by N again"
LOCAL, SHARE = "this rank's own gradient", "this rank's own gradient, divided by N"
ELSE = "something else"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"kinds": SUM}, "instead of a sum"),
        ({"kinds": {"a": "right", "b": SUM, "c": SUM}}, "instead of a sum"),
        ({"kinds": {"a": AGAIN, "b": SUM, "c": SUM}}, "Follow one gradient"),
        ({"kinds": AGAIN}, "Divided twice"),
        ({"kinds": ELSE, "sent": []}, "No all-reduce was started"),
        ({"kinds": ELSE, "sent": [["c", "?"], ["a"]]}, "does it read?"),
        ({"kinds": ELSE, "sent": [["c", "b"], ["?"]], "earlier": True}, "Here a backward ran"),
        ({"kinds": ELSE, "sent": [["c", "b"], ["b", "a"]]}, "b was sent more than once"),
        ({"kinds": ELSE, "sent": [["c", "?"], ["?", "b", "a"]]}, "does it read?"),
        ({"kinds": ELSE, "sent": [["c", "b"]]}, "a: 100 bytes, never sent. Which call"),
        ({"kinds": ELSE, "sent": [["b"]]}, "a, c: never sent, and that is 300 bytes."),
        ({"kinds": ELSE, "unwaited": 2}, "2 of the all-reduces were not waited for"),
        ({"kinds": {"a": LOCAL, "b": SHARE, "c": "right"}}, "`.grad` does not have the sums"),
        ({"kinds": {"a": LOCAL, "b": "zeros", "c": LOCAL}}, "Follow one gradient"),
    ],
)
def test_a_hint_for_each_kind_of_wrong_numbers(given, hint):
    told("step 1, rank 0: `.grad` after finish()", hint, lambda: first_step(**given))


def test_an_earlier_backward_is_named_only_if_there_was_one():
    with pytest.raises(NotRight) as error:
        first_step(kinds=ELSE, sent=[["c", "?"]])
    assert "Here a backward ran" not in error.value.hint


def test_ranks_with_another_order_of_messages():
    found = runs()
    for run in found:
        run["steps"][0]["kinds"] = dict.fromkeys(SIZES, ELSE)
    found[2]["steps"][0]["sent"] = [["a"], ["c", "b"]]
    with pytest.raises(NotRight) as error:
        judge_buckets(found, 250, False)
    assert error.value.hint == HANG
    found[2]["steps"][0]["sent"] = [["c"], ["b"], ["a"]]  # other messages, not another order
    with pytest.raises(NotRight) as error:
        judge_buckets(found, 250, False)
    assert error.value.hint != HANG


@pytest.mark.parametrize(
    ("seen", "bucket", "hint"),
    [
        (("c", "b", 500, "a", "over", 100, 8), 250, "which gradient is sent twice"),
        (("c", 200, "b", 300, "a", "over", 50, 50), 600, "At most 2 messages"),
        (("c", 200, "b", 300, "a", "over", 50, 50), 300, "At most 3 messages"),
        (("c", "b", 500, "wait", "a", "over", 100), 250, "The backward stood still"),
        (("c", "b", "a", 500, 100, "over"), 200, "waited for the very last gradient"),
        (("c", "b", "a", "over", 600), 601, None),  # no bucket was full before the end
        (("c", "b", "a", 500, "over", 100), 300, None),  # twice 300 bytes were not due before a
        (("c", "b", "a", "over", 600), 599, "Was no bucket ever full"),
        (("c", "b", "a", "over", 300, 300), 300, "Which hook runs"),
        (("c", 200, "b", "a", "over", 400), 200, "400 bytes were still on the rank"),
        (("c", 200, "b", 300, "a", "over", 100), 101, None),
        (("c", 200, "b", "a", "over", 400), 400, "400 bytes were still on the rank"),
        (("c", 200, "b", "a", 300, 100, "over"), 200, None),  # one of them before the end
        (("c", 100, "b", 300, "a", "over", 50, 50, 50, 50), 250, "At most 4 messages"),
    ],
)
def test_messages_in_the_backward(seen, bucket, hint):
    given = (report(events=events(*seen)), bucket, 1, 2)
    if hint is None:
        return judge_messages(*given)
    with pytest.raises(NotRight, match=f"buckets of {bucket} bytes, in step 2 rank 2") as error:
        judge_messages(*given)
    assert hint in error.value.finding + error.value.hint, error.value


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("AttributeError: 'NoneType' object has no attribute", "A `.grad` was None"),
        ("cannot register a hook on a tensor that doesn't require grad", "A frozen parameter"),
        ("a likely hang", HANG),
        ("rank 1 died: SIGABRT", HANG),
        ("RuntimeError: [Gloo] connection", HANG),
        ("KeyError: 'x'", ""),
    ],
)
def test_hints_for_errors(finding, hint):
    assert hint_failure(finding).startswith(hint)
    assert bool(hint_failure(finding)) == bool(hint)

"""Exercise of week 5: messages that are posted together, so that 1F1B never deadlocks."""

from collections import Counter

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict
from helpers.plans.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    SEND,
    Action,
    Message,
    gpipe,
    one_f_one_b,
    with_messages,
    zero_bubble_h1,
)
from helpers.plans.schedules.rendezvous import waiting

SCHEDULES = (
    gpipe(2, 2),
    one_f_one_b(4, 8),
    one_f_one_b(2, 3),
    one_f_one_b(3, 2),
    zero_bubble_h1(3, 5),
)
SHAPE = "Return a list of lists: each holds one Action, or Messages that are posted together."


def fuse_messages(fn) -> Verdict:
    """Check `fn(steps) -> groups` on every rank of GPipe, 1F1B and ZB-H1, with rendezvous sends."""
    cases = [
        (f"{s.name} of {s.ranks} ranks, m = {s.micro_batches}", (with_messages(s, ahead=0),), {})
        for s in (*SCHEDULES, *hidden.more(drawn))
    ]

    def of_all_ranks(programs):
        return [fn(list(steps)) for steps in programs]

    return examine_here("fuse_messages", of_all_ranks, cases, judge_groups)


def drawn(random):
    ranks = random.randint(2, 5)  # ZB-H1 needs a micro-batch for each rank
    schedule = random.choice((gpipe, one_f_one_b, zero_bubble_h1))
    return schedule(ranks, random.randint(ranks, 9))


def judge_groups(answer, programs):
    for rank, (groups, steps) in enumerate(zip(answer, programs, strict=True)):
        judge_shape(groups, rank)
        judge_order([step for group in groups for step in group], steps, rank)
    messages = [[g for g in groups if isinstance(g[0], Message)] for groups in answer]
    stuck = waiting(messages)
    if stuck:
        listing = "\n".join(
            f"  rank {rank} {' and '.join(map(str, own))}" for rank, own in stuck.items()
        )
        alone = all(len(group) == 1 for program in messages for group in program)
        raise NotRight(
            f"these messages wait for each other for ever\n{listing}",
            "One message at a time, in any order, leaves two neighbours waiting. Which messages of "
            "a rank lie between two of its computations, and could wait together?"
            if alone
            else "Some messages are together, but not those. Look between two computations: which "
            "messages does a rank have there?",
        )


def judge_shape(groups, rank: int):
    if not isinstance(groups, list | tuple):
        raise NotRight(f"rank {rank}: returned {type(groups).__name__}", SHAPE)
    for group in groups:
        if not isinstance(group, list | tuple) or not group:
            raise NotRight(f"rank {rank}: a group is {group!r}", SHAPE)
        if not all(isinstance(step, Action | Message) for step in group):
            raise NotRight(f"rank {rank}: a group holds other things than steps", SHAPE)
        if len(group) > 1 and any(isinstance(step, Action) for step in group):
            raise NotRight(
                f"rank {rank}: '{next(s for s in group if isinstance(s, Action))}' shares a group",
                "A computation is alone in its group: only messages are posted together.",
            )


def judge_order(found, steps, rank: int):
    """Every step once, computations in their order, messages when they can be posted."""
    if Counter(found) != Counter(steps):
        lost = Counter(steps) - Counter(found)
        which = next(iter(lost or Counter(found) - Counter(steps)))
        raise NotRight(
            f"rank {rank}: the step '{which}' is {'missing' if lost else 'there twice'}",
            "Every step is in one group. Does your loop keep the last group?"
            if lost
            else "Every step is in one group.",
        )
    place = {step: number for number, step in enumerate(found)}
    computations = [step for step in steps if isinstance(step, Action)]
    if computations != [step for step in found if isinstance(step, Action)]:
        raise NotRight(
            f"rank {rank}: the computations are in another order",
            "The schedule stays as it is. Only messages move together.",
        )
    for message in found:
        if not isinstance(message, Message):
            continue
        made = message.kind == SEND
        stage = message.source if made else message.target
        kinds = (FORWARD,) if message.forward else (BACKWARD, INPUT)
        action = next(a for a in computations if (a.stage, a.micro) == (stage, message.micro)
                      and a.kind in kinds)  # fmt: skip
        if made and place[message] < place[action]:
            raise NotRight(
                f"rank {rank}: '{message}' is before {action}",
                "A rank sends what it has computed. Between which computations may a send move?",
            )
        if not made and place[message] > place[action]:
            raise NotRight(
                f"rank {rank}: '{message}' is after {action}",
                "A rank computes with what it has received. How late may a receive be?",
            )

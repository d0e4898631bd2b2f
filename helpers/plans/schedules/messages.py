"""What a rank executes: its computations with the sends and the receives between them.

A **buffered** send copies its message and returns. A **rendezvous** send returns only when the
receiver takes the message: so do large messages of MPI, and NCCL's. In 1F1B two neighbours then
wait for each other: rank r sends an activation down while rank r + 1 sends a gradient up.
"""

from collections import defaultdict
from collections.abc import Sequence

from helpers.plans.schedules.action import (
    FORWARD,
    RECEIVE,
    SEND,
    WEIGHT,
    Action,
    Message,
    Schedule,
)
from helpers.plans.schedules.validity import check

Step = Action | Message
WAYS = ("rendezvous", "fused")


def with_messages(schedule: Schedule, *, ahead: int = 1) -> tuple[tuple[Step, ...], ...]:
    """For each rank, its Actions with their Messages: each send at once, each receive early.

    A SEND follows the computation that made its tensor. A RECEIVE posts a buffer at least `ahead`
    computations before the buffer is needed; wait for it before that computation. On each channel
    (from one rank to another) the receives are posted in the order of the sends, so that messages
    need no tag. Stages on one rank pass their tensors without a message.

    Args:
        ahead: 0 posts each receive right before the computation that needs it.

    Raises:
        ScheduleError: the schedule cannot run.
    """
    check(schedule)
    places = posted(schedule, ahead)
    steps = []
    for rank, order in enumerate(schedule.orders):
        own: list[Step] = []
        for place, action in enumerate(order):
            own += places[rank].get(place, [])
            own.append(action)
            if message := sent(schedule, action):
                own.append(message)
        steps.append(tuple(own))
    return tuple(steps)


def sent(schedule: Schedule, action: Action) -> Message | None:
    """The message that the computation's output makes, as its sender sees it."""
    return message(schedule, SEND, action, 1 if action.kind == FORWARD else -1)


def received(schedule: Schedule, action: Action) -> Message | None:
    """The message that the computation needs, as its receiver sees it."""
    return message(schedule, RECEIVE, action, -1 if action.kind == FORWARD else 1)


def message(schedule: Schedule, kind: str, action: Action, step: int) -> Message | None:
    """The message to or from the stage `step` further; None if there is none, or on this rank."""
    other = action.stage + step
    if action.kind == WEIGHT or not 0 <= other < schedule.stages:
        return None
    peer = schedule.placement[other]
    if peer == schedule.placement[action.stage]:
        return None
    ends = (action.stage, other) if kind == SEND else (other, action.stage)
    return Message(kind, *ends, action.micro, peer)


def posted(schedule: Schedule, ahead: int) -> list[dict[int, list[Message]]]:
    """For each rank: place in its order -> the receives that are posted there."""
    needed = [{} for _ in schedule.orders]  # (source, target, micro) -> place of the computation
    channels = defaultdict(list)  # (from, to) -> the messages in the order of the sends
    for rank, order in enumerate(schedule.orders):
        for place, action in enumerate(order):
            if message := received(schedule, action):
                needed[rank][message.source, message.target, message.micro] = place
            if message := sent(schedule, action):
                channels[rank, message.peer].append(message)
    found = [defaultdict(list) for _ in schedule.orders]
    for (source, rank), messages in sorted(channels.items()):
        # From the last to the first: a receive is posted no later than those after it.
        latest, places = len(schedule.orders[rank]), []
        for message in reversed(messages):
            key = message.source, message.target, message.micro
            latest = min(latest, max(needed[rank][key] - ahead, 0))
            places.append(latest)
        for message, place in zip(messages, reversed(places), strict=True):
            half = Message(RECEIVE, message.source, message.target, message.micro, source)
            found[rank][place].append(half)
    return [dict(places) for places in found]


def stuck(schedule: Schedule, way: str = "rendezvous") -> dict[int, tuple[Message, ...]]:
    """The messages in which ranks wait for ever: {rank: its Messages}; empty without a deadlock.

    The answer does not depend on the ranks' speeds: each rank's next messages are fixed.

    Args:
        way: "rendezvous": one message after another. A receive is called right before the
            computation that needs it, a send right after the computation that made it.
            "fused": a rank posts all messages between two computations together, then waits for
            all of them (`send_forward_recv_backward` in Megatron-LM, `batch_isend_irecv` in
            PyTorch). It cures 1F1B and ZB-H1. Interleaved 1F1B and ZB-V need more: sends that a
            rank does not wait for.

    Raises:
        ValueError: there is no such way.
    """
    if way not in WAYS:
        raise ValueError(f"way is {way!r}; there are {', '.join(WAYS)}")
    return waiting([groups(steps, way) for steps in with_messages(schedule, ahead=0)])


def waiting(programs: Sequence[Sequence[Sequence[Message]]]) -> dict[int, tuple[Message, ...]]:
    """The same for any programs: for each rank its groups of Messages, in order.

    A rank posts a group together, and begins the next group when every message of it has gone.
    """
    left = [[list(group) for group in program] for program in programs]
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(left):
            for message in [one for one in (program[0] if program else ()) if one.kind == SEND]:
                other = left[message.peer]
                matching = [one for one in (other[0] if other else ()) if pair(message, one, rank)]
                if matching:
                    program[0].remove(message)
                    other[0].remove(matching[0])
                    moved = True
        for program in left:
            while program and not program[0]:
                program.pop(0)
                moved = True
    return {rank: tuple(sorted(program[0])) for rank, program in enumerate(left) if program}


def groups(steps, way: str) -> list[list[Message]]:
    """The messages that a rank posts together, in order. A computation never waits here."""
    found, after_message = [], False
    for step in steps:
        if isinstance(step, Action):
            after_message = False
            continue
        if after_message and way == "fused":
            found[-1].append(step)
        else:
            found.append([step])
        after_message = True
    return found


def pair(send: Message, other: Message, sender: int) -> bool:
    """Whether `other` is the receive of what this rank sends."""
    same = (send.source, send.target, send.micro) == (other.source, other.target, other.micro)
    return same and other.kind != SEND and other.peer == sender

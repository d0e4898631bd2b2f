"""What a rank executes: its computations with the sends and the receives between them."""

from collections import defaultdict

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
    if action.kind == WEIGHT:
        return None
    target = action.stage + (1 if action.kind == FORWARD else -1)
    if not 0 <= target < schedule.stages:
        return None
    peer = schedule.placement[target]
    if peer == schedule.placement[action.stage]:
        return None
    return Message(SEND, action.stage, target, action.micro, peer)


def received(schedule: Schedule, action: Action) -> Message | None:
    """The message that the computation needs, as its receiver sees it."""
    if action.kind == WEIGHT:
        return None
    source = action.stage + (-1 if action.kind == FORWARD else 1)
    if not 0 <= source < schedule.stages:
        return None
    peer = schedule.placement[source]
    if peer == schedule.placement[action.stage]:
        return None
    return Message(RECEIVE, source, action.stage, action.micro, peer)


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

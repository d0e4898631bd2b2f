"""No schedule deadlocks where single messages wait in queues, as on NCCL: a simulation.

On NCCL the messages of one process group move in the order of the calls, and each waits for its
other side (see tests/nccl_order.py). So the answer depends on which messages share a group.
"""

from collections import deque
from functools import partial

import pytest

from helpers.comm.point_to_point import neighbours
from helpers.parallel.pipeline.execution import AHEAD
from helpers.plans import schedules
from helpers.plans.schedules import FORWARD, SEND, WEIGHT, Message, with_messages

SCHEDULES = {
    "gpipe": schedules.gpipe,
    "1f1b": schedules.one_f_one_b,
    "interleaved, 2": partial(schedules.interleaved, chunks=2),
    "interleaved, 3": partial(schedules.interleaved, chunks=3),
    "zb-h1": schedules.zero_bubble_h1,
    "zb-v": schedules.zero_bubble_v,
}


def stuck(schedule, queue_of) -> set[int]:
    """The ranks that wait for ever. A message waits in `queue_of(sender, receiver)` on both sides.

    A rank posts its messages without waiting. It waits before a computation for the message that
    the computation needs.
    """
    steps = [deque(own) for own in with_messages(schedule, ahead=AHEAD)]
    expected = [{key(one) for one in own if is_receive(one)} for own in steps]
    queues, came = [{} for _ in steps], [set() for _ in steps]

    def run(rank):
        """Go on until a message is missing; return the queues that got one."""
        grown = []
        while steps[rank]:
            step = steps[rank][0]
            if isinstance(step, Message):
                sender, receiver = (rank, step.peer) if step.kind == SEND else (step.peer, rank)
                name = queue_of(sender, receiver)
                queues[rank].setdefault(name, deque()).append((step.kind, step.peer, key(step)))
                grown.append((rank, name))
            elif (needed := needs(step)) in expected[rank] and needed not in came[rank]:
                break
            steps[rank].popleft()
        return grown

    look = [place for rank in range(len(steps)) for place in run(rank)]
    while look:
        rank, name = look.pop()
        own = queues[rank].get(name)
        if not own:
            continue
        kind, peer, what = own[0]
        other = queues[peer].get(name)
        if not other or other[0][0] == kind or other[0][1:] != (rank, what):
            continue
        own.popleft()
        other.popleft()
        receiver = peer if kind == SEND else rank
        came[receiver].add(what)
        look += [(rank, name), (peer, name), *run(receiver)]
    return {rank for rank, own in enumerate(steps) if own or any(queues[rank].values())}


def is_receive(step) -> bool:
    return isinstance(step, Message) and step.kind != SEND


def key(message: Message):
    return message.source, message.target, message.micro


def needs(action):
    if action.kind == WEIGHT:
        return None
    before = -1 if action.kind == FORWARD else 1
    return action.stage + before, action.stage, action.micro


def channel(sender, receiver):
    return sender, receiver


@pytest.mark.parametrize("name", SCHEDULES)
def test_with_a_group_for_each_channel_no_schedule_deadlocks(name):
    for p in (2, 3, 4, 5, 8, 16):
        pairs = set(neighbours(p))
        for m in (p, 2 * p, 4 * p):
            try:
                schedule = SCHEDULES[name](p, m)
            except ValueError:  # the schedule needs another number of micro-batches
                continue
            for rank, own in enumerate(with_messages(schedule, ahead=AHEAD)):
                sends = {(rank, s.peer) for s in own if isinstance(s, Message) and s.kind == SEND}
                assert sends <= pairs, (p, m)
            assert not stuck(schedule, channel), (p, m)


def direction(sender, receiver):
    return "up" if receiver < sender else "down"


@pytest.mark.parametrize(
    ("name", "p", "m"), [("1f1b", 4, 8), ("1f1b", 8, 8), ("interleaved, 2", 4, 8), ("zb-h1", 8, 8)]
)
def test_with_a_group_for_each_direction_deep_pipelines_deadlock(name, p, m):
    assert stuck(SCHEDULES[name](p, m), direction)


def test_with_one_group_two_ranks_deadlock():
    schedule = schedules.one_f_one_b(2, 4)
    assert stuck(schedule, lambda *_: "all") == {0, 1}
    assert not stuck(schedule, direction)  # two ranks do not show the defect of directions

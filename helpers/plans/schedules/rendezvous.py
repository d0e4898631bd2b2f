"""Which schedules deadlock if a send waits for its receive, and which exchange cures it.

A **buffered** send copies its message and returns. A **rendezvous** send returns only when the
receiver takes the message: so do large messages of MPI, and NCCL's. In 1F1B two neighbours then
wait for each other: rank r sends an activation down while rank r + 1 sends a gradient up.
"""

from collections.abc import Sequence

from helpers.plans.schedules.action import SEND, Action, Message, Schedule
from helpers.plans.schedules.messages import with_messages

WAYS = ("rendezvous", "fused")


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

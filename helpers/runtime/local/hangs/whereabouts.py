"""Answer the question where a rank is: in which blocking call, and what it called before.

Gloo pairs the collectives of a group by number: the members' n-th calls belong together. PyTorch's
flight recorder keeps the last 2,000 collectives: the group, this number, the operation, and whether
it is over. The recorder and some names here are private to PyTorch. Where they are missing, a rank
knows less, and no hang can be proved.
"""

import json
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from helpers.runtime.local import channel
from helpers.runtime.local.hangs.quiet import activity

SETTLED_SECONDS = 0.8  # without a move, until a rank counts as settled
LAST = 200  # collectives of each group in one answer
# Which other ranks a member waits for, by gloo's name of the operation. Messages between two ranks
# have our own names, send and recv. Nothing is known of operations that are missing here.
FOR_ALL = {"all_reduce", "all_gather", "all_to_all", "barrier"}
FROM_ROOT = {"broadcast", "scatter"}
TO_ROOT = {"gather", "reduce"}


@dataclass(frozen=True)
class Wait:
    """A blocking call that has not returned.

    Attributes:
        function: the name that the student called.
        operation: gloo's name; "send" or "recv" for a message between two ranks.
        group: its name, the same on all members.
        members: the group's global ranks.
        number: the number of the collective in its group; None for send and recv.
        needs: the global ranks without which the call can never return.
        seconds: after which gloo itself gives up.
    """

    function: str
    operation: str
    group: str
    members: tuple[int, ...]
    number: int | None
    needs: frozenset[int]
    seconds: float


@dataclass(frozen=True)
class Answer:
    """Where a rank is.

    Attributes:
        place: "waiting" in a blocking call, "idle" between two calls of the notebook, or "running".
        settled: has it been there since an earlier look, and started nothing in between?
        quiet: has its process also done nothing since an earlier look?
        alone: is there no other Python thread that could still send a message?
        wait: the blocking call that it waits in.
        issued: by group, the numbers and operations of its last collectives.
        complete: does `issued` go back to the first collective?
    """

    place: str
    settled: bool = False
    quiet: bool = False
    alone: bool = False
    wait: Wait | None = None
    issued: dict[str, dict[int, str]] = field(default_factory=dict)
    complete: bool = False


class Observer:
    """Looks at this process from a thread of its own."""

    def __init__(self):
        self.sign, self.busy = Unchanged(), Unchanged()

    def look(self, default_group) -> Answer:
        """Return where this rank is: in microseconds, or milliseconds if the rank has not moved.

        Args:
            default_group: the group that this rank first joined. If the function has made another
                default group, names and numbers begin again, and the recorder mixes them up.
        """
        try:
            return self.compare(default_group is not None and default_group is dist.group.WORLD)
        except Exception:  # a private part of PyTorch has changed, so nothing is known
            return Answer("running")

    def compare(self, clear: bool) -> Answer:
        frame = sys._current_frames()[threading.main_thread().ident]
        place = place_of(frame)
        settled = self.sign.since((place, id(frame), frame.f_lasti, sequence_numbers()))
        if place == "running" or not settled or not clear:
            return Answer(place)
        quiet, entries = self.busy.since(activity()), recorded()
        return Answer(
            place,
            settled=True,
            quiet=quiet,
            alone=alone(),
            wait=None if place == "idle" else wait_of(frame, entries),
            issued=issued(entries),
            complete=not entries or entries[0]["record_id"] == 0,
        )


class Unchanged:
    """Has a value been the same for a while? None never counts as the same."""

    def __init__(self):
        self.value, self.when = None, 0.0

    def since(self, value) -> bool:
        now = time.monotonic()
        if value is None or value != self.value:
            self.value, self.when = value, now
        return now - self.when >= SETTLED_SECONDS


def place_of(frame) -> str:
    if frame.f_code.co_filename == distributed_c10d.__file__:
        return "waiting"
    if frame.f_code.co_filename == socket.__file__:
        frame = frame.f_back
    return "idle" if frame.f_code.co_filename == channel.__file__ else "running"


def sequence_numbers() -> tuple:
    """Return how many operations each group has seen in this process."""
    groups = list(distributed_c10d._world.pg_map)
    return tuple((g.group_name, g._get_sequence_number_for_group()) for g in groups)


def alone() -> bool:
    """Does Python have no thread but the main one and this one?"""
    return set(sys._current_frames()) == {threading.main_thread().ident, threading.get_ident()}


def recorded() -> list[dict]:
    """Return the flight recorder's entries, the oldest first."""
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))
    return trace.get("entries", [])  # none before the first


def operation(entry: dict) -> str:
    return entry["profiling_name"].removeprefix("gloo:")


def issued(entries: list[dict]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for entry in entries:
        found.setdefault(entry["process_group"][0], {})[entry["collective_seq_id"]] = operation(
            entry
        )
    return {name: dict(sorted(numbers.items())[-LAST:]) for name, numbers in found.items()}


def called(frame) -> str:
    """Return the name of the torch.distributed function that the student called."""
    name = frame.f_code.co_name
    while frame := frame.f_back:
        file = frame.f_code.co_filename
        if file == distributed_c10d.__file__:
            name = frame.f_code.co_name
        elif not file.endswith("c10d_logger.py"):
            break
    return name


def group_of(frame) -> dist.ProcessGroup:
    return frame.f_locals.get("group") or dist.group.WORLD


def members(group) -> tuple[int, ...]:
    ranks = distributed_c10d._world.pg_group_ranks[group]  # global rank -> rank in the group
    return tuple(sorted(ranks, key=ranks.get))


def wait_of(frame, entries: list[dict]) -> Wait | None:
    return message_wait(frame) or collective_wait(frame, entries)


def message_wait(frame) -> Wait | None:
    """Return the wait for one other rank, in `send` or `recv`; None if there is none."""
    kind, values = frame.f_code.co_name, frame.f_locals
    side = {"send": "dst", "recv": "src"}.get(kind)
    if side is None or "work" not in values or not values["tensor"].is_cpu:
        return None
    group, peer = group_of(frame), values.get(side)
    if peer is None and values.get(f"group_{side}") is not None:
        peer = members(group)[values[f"group_{side}"]]
    if peer is None:  # `recv` from any rank
        return None
    seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    return Wait(
        called(frame), kind, group.group_name, members(group), None, frozenset([peer]), seconds
    )


def collective_wait(frame, entries: list[dict]) -> Wait | None:
    """Return the wait for the other members, in a collective that the main thread has begun."""
    main = str(threading.main_thread().ident)
    mine = [entry for entry in entries if entry["thread_id"] == main]
    if not mine or mine[-1]["retired"] or not mine[-1]["profiling_name"].startswith("gloo:"):
        return None
    entry, group = mine[-1], group_of(frame)
    name = group.group_name
    if "work" not in frame.f_locals or entry["process_group"][0] != name:
        return None  # between two collectives
    if not name.isdigit():
        return None  # a name made from the members may come back after the group has gone
    kind, everyone, me = operation(entry), members(group), dist.get_rank()
    others = frozenset(everyone) - {me}
    needs: frozenset[int] = frozenset()
    root = frame.f_locals.get("group_src" if kind in FROM_ROOT else "group_dst")
    if kind in FOR_ALL or len(others) == 1:
        needs = others
    elif kind in FROM_ROOT and everyone[root] != me:
        needs = frozenset([everyone[root]])
    elif kind in TO_ROOT and everyone[root] == me:
        needs = others
    number, seconds = entry["collective_seq_id"], entry["timeout_ms"] / 1000
    return Wait(called(frame), kind, name, everyone, number, needs, seconds)

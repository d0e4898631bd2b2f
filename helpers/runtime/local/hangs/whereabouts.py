"""Answer the question where a rank is: in which blocking call, and what it called before.

Gloo and NCCL pair the collectives of a group by number: the members' n-th calls belong together.
PyTorch's flight recorders keep the last 2,000 collectives of each: the group, this number, the
operation, and whether it is over. The recorders and some names here are private to PyTorch. Where
they are missing, a rank knows less, and no hang can be proved.

A call to gloo blocks in a function of torch.distributed. A call to NCCL only starts the GPU's work;
the rank blocks later, in its own line that reads the result (`loss.item()`). It spins there, as if
it computed. So such a rank waits if NCCL has not finished its oldest collective, and the rank has
been in the same instruction for longer.
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
from helpers.runtime.local.rank import compared

SETTLED_SECONDS = 0.8  # without a move, until a rank counts as settled,
SPINNING_SECONDS = 4.0  # and outside torch.distributed: one call in C may compute as long
LAST = 200  # collectives of each group in one answer
# Which other ranks a member waits for, by gloo's name of the operation. Messages between two ranks
# have our own names, send and recv. Nothing is known of operations that are missing here.
FOR_ALL = {"all_reduce", "all_gather", "all_to_all", "barrier"}
FROM_ROOT = {"broadcast", "scatter"}
TO_ROOT = {"gather", "reduce"}
OF_NCCL = {f"nccl:{name}" for name in FOR_ALL | FROM_ROOT | TO_ROOT | {"reduce_scatter"}}
SAME = {  # the same operation of NCCL
    "nccl:all_reduce_barrier": "nccl:all_reduce",
    "nccl:_all_gather_base": "nccl:all_gather",
    "nccl:_reduce_scatter_base": "nccl:reduce_scatter",
    "nccl:_broadcast_oop": "nccl:broadcast",
    "nccl:_reduce_oop": "nccl:reduce",
}


@dataclass(frozen=True)
class Wait:
    """A blocking call that has not returned.

    Attributes:
        function: the name that the student called; NCCL's operation with its number and group.
        operation: gloo's name; "send" or "recv" for a message between two ranks; NCCL's with nccl:.
        group: its name, the same on all members; NCCL's with nccl:, because its numbers are others.
        members: the group's global ranks.
        number: the number of the collective in its group; None for send and recv.
        needs: the global ranks without which the call can never return.
        seconds: after which gloo or NCCL itself gives up.
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
        place: "waiting" in a blocking call or for the GPU, "idle" between two calls of the
            notebook, or "running".
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
        patience = SPINNING_SECONDS if place == "running" else SETTLED_SECONDS
        sign = (place, id(frame), frame.f_lasti, sequence_numbers())
        if not self.sign.since(sign, patience) or not clear:
            return Answer(place)
        quiet, entries = self.busy.since(activity()), recorded()
        wait = wait_of(frame, entries) if place == "waiting" else None
        if place != "idle" and wait is None:
            wait = gpu_wait(entries)
        firsts = {library(entry): entry["record_id"] for entry in reversed(entries)}
        return Answer(
            "waiting" if wait else place,
            settled=True,
            quiet=quiet,
            alone=alone(),
            wait=wait,
            issued=issued(entries),
            complete=not any(firsts.values()),
        )


class Unchanged:
    """Has a value been the same for a while? None never counts as the same."""

    def __init__(self):
        self.value, self.when = None, 0.0

    def since(self, value, seconds: float = SETTLED_SECONDS) -> bool:
        now = time.monotonic()
        if value is None or value != self.value:
            self.value, self.when = value, now
        return now - self.when >= seconds


def place_of(frame) -> str:
    if frame.f_code.co_filename == compared.__file__:  # it has called PyTorch, or waits for notes
        frame = frame.f_back
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
    """Return the entries of gloo's recorder, and of NCCL's where there is one; the oldest first."""
    entries = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        if dump := getattr(torch._C._distributed_c10d, name, None):
            entries += json.loads(dump(True, False)).get("entries", [])  # none before the first
    return entries


def library(entry: dict) -> str:
    return entry["profiling_name"].partition(":")[0]


def operation(entry: dict) -> str:
    name = entry["profiling_name"].removeprefix("gloo:")
    return SAME.get(name, name)


def group_name(entry: dict) -> str:
    name = entry["process_group"][0]
    return f"nccl:{name}" if library(entry) == "nccl" else name


def issued(entries: list[dict]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for entry in entries:
        if not (entry["is_p2p"] and library(entry) == "nccl"):  # it has the last one's number
            numbers = found.setdefault(group_name(entry), {})
            numbers[entry["collective_seq_id"]] = operation(entry)
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


def gpu_wait(entries: list[dict]) -> Wait | None:
    """Return the wait for the other members, in the oldest collective that NCCL has not finished.

    NCCL finishes a group's operations in their order. An operation inside a coalesced one has no
    events of its own, and never counts as finished itself.
    """
    unfinished: dict[str, list[dict]] = {}
    for entry in entries:
        if library(entry) == "nccl":
            own = unfinished.setdefault(entry["process_group"][0], [])
            own.append(entry)
            if entry["retired"] or entry["state"] == "completed":
                own.clear()
    oldest = [own[0] for own in unfinished.values() if own]
    entry = min(oldest, key=lambda entry: entry["record_id"], default=None)
    if entry is None or entry["is_p2p"] or not entry["process_group"][0].isdigit():
        return None
    name, number, kind = entry["process_group"][0], entry["collective_seq_id"], operation(entry)
    [group] = [group for group in distributed_c10d._world.pg_map if group.group_name == name]
    everyone = members(group)
    return Wait(
        f"NCCL's {kind.removeprefix('nccl:')} (number {number} of group {name})",
        kind, group_name(entry), everyone, number, frozenset(everyone) - {dist.get_rank()},
        entry["timeout_ms"] / 1000,
    )  # fmt: skip

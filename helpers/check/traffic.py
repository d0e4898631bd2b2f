"""What ranks say to each other while a student's function runs, and what may be said about it."""

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace

import torch

from helpers.check.ranks import LOOP_HINT, OnRanks, first_match, loops
from helpers.check.verdict import FRAME, NotRight, Verdict, own_frames
from helpers.check.watch import MESSAGES, NOT_ITSELF, Call
from helpers.runtime.worker import Worker

UNSENT = "The numbers are right, but no messages brought them. Which messages does the task need?"

BREAKS = (  # words of a finding, and its hint
    (r"SIGABRT|which receives", "A message is larger than the tensor it is received into. Do "
     "sender and receiver agree on its size, in numbers and in dtype?"),
    (rf"{NOT_ITSELF}|should not be the same as the rank", "What a rank has for itself, it has "
     "already. Which rank do you mean?"),
    (r"there is no rank", "The ranks are numbered from 0. What comes after the last, what before "
     "0?"),
    (r"list index out of range", "Fewer pieces than ranks: how many does a short tensor make?"),
    (r"broadcast shape|must match the size", "The tensors are not of one size. Are all pieces "
     "equally long, for every number of ranks? How large is the one that comes in?"),
)  # fmt: skip
ALL_IN = {  # where all ranks of a hang are, and its hint
    "send": "Every rank is in `send`, and a `send` ends when its receiver is there. Which rank "
    "receives?",
    "recv": "Every rank waits in `recv`, and no message is on its way. Which rank sends first?",
    "running": "Every rank waits for a request. For each `isend`: does the rank that it goes to "
    "begin an `irecv` from just this one?",
}
SOME_DONE = (
    "Some ranks have returned, and others still wait for them. Is there, for each `recv`, a `send` "
    "on the other side, and for each `send` a `recv`, with this number of ranks?"
)
WAITING = (
    "Ranks wait for each other. Write down each message's sender and receiver in the order of each "
    "rank's lines: which one can be the first to arrive?"
)


class ByMessages(OnRanks):
    """An exercise made of messages. Each rank's trace has the facet "calls", which is free."""

    def launched(self, place, run, fn, case, timeout):
        """Run one case. Where a place has ranks for messages alone, each gets its own arguments."""
        if not hasattr(place, "messages"):
            return super().launched(place, run, fn, case, timeout)
        ranks, kwargs = case.arguments
        workers = (Worker(rank, ranks, torch.device("cpu"), None) for rank in range(ranks))
        arguments = [self.given(worker, **kwargs) for worker in workers]
        return place.messages(replace(self.on_rank(), given=None).on, fn, arguments, timeout)

    def problem(self, trace, case):
        if "calls" in trace:
            try:
                only_messages(trace["calls"], trace["unwaited"])
            except NotRight as wrong:
                return "calls", wrong
        return super().problem(trace, case)

    def failure(self, finding, kind):
        known = super().failure(finding, kind)
        return known or explain(Verdict(self.name, "wrong", finding)).hint

    def explained(self, verdict):
        return explain(verdict)


def bytes_sent(calls) -> int:
    return sum(call.nbytes for call in calls if call.name == "send")


def only_messages(traffic: list[list[Call]], unfinished: list[int]):
    for rank, calls in enumerate(traffic):
        for call in calls:
            if call.name not in MESSAGES:
                raise NotRight(
                    f"rank {rank} called the collective {call.name}",
                    "Messages only here: send, recv, isend, irecv. To build the collective from "
                    "them is the exercise.",
                )
    for rank, unwaited in enumerate(unfinished):
        if unwaited:
            raise NotRight(
                f"rank {rank} returned before {unwaited} of its messages had been waited for",
                "isend and irecv only begin. What do they return, and when is a message over?",
            )
    for sender, receiver, sent, room in unequal(traffic):
        raise NotRight(
            f"rank {sender} sent {sent} bytes, and rank {receiver} received them into {room}",
            "gloo lets that pass, other backends do not. How large is the piece that comes in now?",
        )


def unequal(traffic: list[list[Call]]) -> Iterator[tuple[int, int, int, int]]:
    """(sender, receiver, bytes sent, bytes of the tensor received into) where the two differ.

    Messages from one rank to another arrive in the order in which they were sent. A rank that
    receives from whoever comes first is passed over.
    """
    for receiver, calls in enumerate(traffic):
        if any(call.name == "recv" and call.peer is None for call in calls):
            continue
        for sender, others in enumerate(traffic):
            sent = [c.nbytes for c in others if c.name == "send" and c.peer == receiver]
            room = [c.nbytes for c in calls if c.name == "recv" and c.peer == sender]
            for one, other in zip(sent, room, strict=False):
                if one != other:
                    yield sender, receiver, one, other


def steps(traffic: list[list[Call]]) -> int:
    """Steps until the last message has arrived, where a rank sends one message in a step.

    Args:
        traffic: each rank's calls, in order.
    """
    clocks, queues = [0] * len(traffic), defaultdict(deque)
    left = [deque(calls) for calls in traffic]
    while any(left):
        moved = False
        for rank, calls in enumerate(left):
            while calls:
                call = calls[0]
                if call.name == "send":
                    clocks[rank] += 1
                    queues[rank, call.peer].append(clocks[rank])
                else:
                    sources = range(len(traffic)) if call.peer is None else [call.peer]
                    arrived = [s for s in sources if queues[s, rank]]
                    if not arrived:
                        break
                    clocks[rank] = max(clocks[rank], queues[arrived[0], rank].popleft())
                calls.popleft()
                moved = True
        if not moved:  # receives begun before the sends that they wait for
            next(filter(None, left)).popleft()
    return max(clocks)


def explain(verdict: Verdict) -> Verdict:
    """Where messages hang or break off: the student's lines, without the library's, and a hint."""
    finding = verdict.finding
    if verdict.status != "wrong":
        return verdict
    if "is not in a collective" in finding and loops(finding):
        return replace(verdict, finding=whereabouts(finding), hint=LOOP_HINT)
    if "no sign of life" in finding or ": a hang: " in finding:  # the latter with a proof
        return replace(verdict, finding=whereabouts(finding), hint=hint_hang(whereabouts(finding)))
    hint = verdict.hint or first_match(BREAKS, finding)
    return replace(verdict, finding=own_frames(finding), hint=hint)


def whereabouts(finding: str) -> str:
    """A hang's first line, and for each rank the student's line that it stands at."""
    first, *rest = own_frames(finding).splitlines()
    kept = [first]
    for number, line in enumerate(rest):
        if re.match(r"rank \d+ was ", line):
            kept.append(line)
        elif (frame := FRAME.match(line)) and "watch.py" in kept[-1]:
            place = f"line {frame[3]} of {frame[1] or frame[2]}, in {frame[4]}"
            source = rest[number + 1].strip() if number + 1 < len(rest) else ""
            kept[-1] = f"{kept[-1].split(', line')[0]}, {place}: {source}"
    return "\n".join(kept)


def hint_hang(finding: str) -> str:
    where = {*re.findall(r"^rank \d+ was (?:waiting in )?(\w+)", finding, re.M)}
    if len(where) == 1 and (hint := ALL_IN.get(*where)):
        return hint
    return SOME_DONE if "done" in where else WAITING

"""Ask silent ranks where they are, and prove from their answers that some can never go on.

Slowness is no proof: a rank that computes, or all ranks in the same operation, may need any time.
A rank is stuck if it waits for another rank that

- called something else as the group's collective of this number; or
- has not reached this number, and never will: it has returned, or is stuck itself.

So the stuck ranks are the largest set in which each rank waits for a rank that is in the set, has
returned, or called something else. Each of these facts stays true once it is true. So the ranks may
answer at slightly different moments.
"""

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass

from helpers.runtime.local.hangs.whereabouts import (
    FOR_ALL,
    FROM_ROOT,
    OF_NCCL,
    TO_ROOT,
    Answer,
    Wait,
)
from helpers.runtime.report import named

KNOWN = FOR_ALL | FROM_ROOT | TO_ROOT | OF_NCCL
PATIENT_SECONDS = 600.0  # a wait with a shorter timeout of its own may end by itself
QUIET_SECONDS = 1.5  # without a sign of life, until the first look
ANSWER_SECONDS = 0.3  # for all ranks to answer, so that the proof is complete
APART_SECONDS = 1.0  # between two looks: a proved rank has not moved in between


@dataclass(frozen=True)
class Stuck:
    """Why a rank can never go on."""

    rank: int
    wait: Wait
    other: int  # the rank that it waits for
    instead: str = ""  # the collective that the other rank called instead


def prove(answers: Mapping[int, Answer], returned: Set[int]) -> dict[int, Stuck]:
    """Return the ranks that can never go on, with the reasons; empty if nothing is proved.

    Args:
        answers: of the ranks that answered.
        returned: ranks whose result has arrived.
    """
    over = {r for r in returned if is_over(answers.get(r))}
    stuck = {r for r, answer in answers.items() if may_be_stuck(answer) and r not in returned}
    while True:
        why = {r: found for r in stuck if (found := reason(r, answers, stuck, over))}
        if len(why) == len(stuck):
            return why
        stuck = set(why)


def is_over(answer: Answer | None) -> bool:
    """Has a rank returned for good, so that it can send nothing any more?"""
    return answer is not None and answer.place == "idle" and answer.settled and answer.alone


def may_be_stuck(answer: Answer) -> bool:
    wait = answer.wait
    return (
        answer.place == "waiting"
        and answer.settled
        and answer.alone
        and wait is not None
        and wait.seconds >= PATIENT_SECONDS
        and (wait.number is None or wait.operation in KNOWN)
    )


def reason(rank: int, answers, stuck: set[int], over: set[int]) -> Stuck | None:
    wait = answers[rank].wait
    for other in sorted(wait.needs & set(answers)):
        answer = answers[other]
        silent = other in stuck or other in over
        if wait.number is None:
            # No message is on its way: no thread of the two ranks has moved since the last look.
            if silent and answers[rank].quiet and answer.quiet:
                return Stuck(rank, wait, other)
            continue
        numbers = answer.issued.get(wait.group, {})
        instead = numbers.get(wait.number)
        if instead in KNOWN and instead != wait.operation:
            return Stuck(rank, wait, other, instead)
        if not numbers and not answer.complete:
            continue  # its last recorded collective in this group is too long ago
        if silent and max(numbers, default=0) < wait.number:
            return Stuck(rank, wait, other)
    return None


def explain(stuck: Mapping[int, Stuck], returned: Set[int]) -> str:
    """Describe in one sentence which ranks wait, where, and for which rank."""
    same: dict[tuple, list[int]] = {}
    for rank, why in sorted(stuck.items()):
        same.setdefault((why.wait.function, reached(why, stuck, returned)), []).append(rank)
    said = (
        f"{named(ranks)} wait{'s' * (len(ranks) == 1)} in {function}{rest}"
        for (function, rest), ranks in same.items()
    )
    return f"a hang: {'; '.join(said)}"


def reached(why: Stuck, stuck, returned) -> str:
    if not why.instead:
        tail = ", which has returned" if why.other in returned else ""
        return f" for rank {why.other}{tail}"
    other = stuck.get(why.other)
    same_call = other and (other.wait.group, other.wait.number) == (why.wait.group, why.wait.number)
    instead = other.wait.function if same_call else why.instead
    return f", but rank {why.other} called {instead} instead"


class Looks:
    """The looks of one call.

    Attributes:
        due: the time of the next look.
        waits: by rank, the wait of its latest answer; None if it was in none.
    """

    def __init__(self, processes):
        self.processes = processes
        self.answers: dict[int, Answer] = {}
        self.waits: dict[int, Wait | None] = {}
        self.asked: set[int] = set()
        self.due = time.monotonic() + QUIET_SECONDS

    def sign_of_life(self):
        self.due = time.monotonic() + QUIET_SECONDS

    def take(self, process) -> bool:
        """Read an answer; return False once the rank is gone."""
        try:
            for (answer,), _ in process.line.messages():
                self.answers[process.rank] = answer
                self.waits[process.rank] = answer.wait
                self.asked.discard(process.rank)
        except EOFError:
            return False
        return True

    def on_gpus(self) -> dict[int, str]:
        """Describe the collectives of NCCL that ranks wait in: their stacks do not show these."""
        return {
            rank: wait.function
            for rank, wait in self.waits.items()
            if wait is not None and wait.operation in OF_NCCL
        }

    def prove(self, returned: set[int]) -> dict[int, Stuck]:
        """Return what the answers to the last look prove; ask again when it is time."""
        if time.monotonic() >= self.due:
            self.ask()
        if self.asked and time.monotonic() < self.due - APART_SECONDS + ANSWER_SECONDS:
            return {}
        return prove(self.answers, returned)

    def ask(self):
        self.due = time.monotonic() + APART_SECONDS
        for process in self.processes.ranks:
            if process.status is None and process.rank not in self.asked:
                self.answers.pop(process.rank, None)
                self.asked.add(process.rank)
                try:
                    process.line.post("look")
                except OSError:  # the rank has ended, and the server will report how
                    pass

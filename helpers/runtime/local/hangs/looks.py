"""Ask the ranks where they are after some time without a sign of life."""

import time

from helpers.runtime.local.hangs.deadlock import Stuck, prove
from helpers.runtime.local.hangs.whereabouts import Answer

QUIET_SECONDS = 1.5  # without a sign of life, until the first look
ANSWER_SECONDS = 0.3  # for all ranks to answer, so that the proof is complete
APART_SECONDS = 1.0  # between two looks: a proved rank has not moved in between


class Looks:
    """The looks of one call.

    Attributes:
        due: the time of the next look.
    """

    def __init__(self, processes):
        self.processes = processes
        self.answers: dict[int, Answer] = {}
        self.asked: set[int] = set()
        self.due = time.monotonic() + QUIET_SECONDS

    def sign_of_life(self):
        self.due = time.monotonic() + QUIET_SECONDS

    def take(self, process) -> bool:
        """Read an answer; return False once the rank is gone."""
        try:
            for (answer,), _ in process.line.messages():
                self.answers[process.rank] = answer
                self.asked.discard(process.rank)
        except EOFError:
            return False
        return True

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

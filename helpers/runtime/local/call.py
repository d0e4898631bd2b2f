"""Run one call on all ranks: listen until every rank has answered, or a rank has failed."""

import os
import selectors
import time
from functools import partial

from helpers.runtime.failure import START_FAILED, Failure, WorkerError, blame, blame_hang
from helpers.runtime.local.channel import readable
from helpers.runtime.local.console import Console
from helpers.runtime.local.forkserver.processes import Processes, RankProcess
from helpers.runtime.local.hangs.deadlock import Looks, explain
from helpers.runtime.local.rank.program import STACK_SIGNAL
from helpers.runtime.payload import Parcel, unpack
from helpers.runtime.runs import Rows
from helpers.runtime.screen import Screen, say, watched

SETTLE_SECONDS = 0.1  # after the likely cause, for ranks that fail for the same reason
COMPLAINT_SECONDS = 1.0  # after a complaint that another rank's end may have caused
STACK_SECONDS = 0.5  # until all ranks must have written their stacks,
STACK_QUIET = 0.03  # and the pause after a line that means the stack is complete
READ = 1 << 16
START_SECONDS = 120.0  # for the ranks to import PyTorch and to meet
PATIENT_SECONDS = 2.0  # without a rank that has joined, until a line says why
STARTING = "The ranks start. A first call imports PyTorch: some seconds, longer on a busy machine."


class Call:
    """Collects the answers of all ranks.

    Attributes:
        results: the result of each rank.
        rows: the rows of `worker.log`, with rank and seconds.
        failures: at most one for each rank.
        stacks: faulthandler's output, by rank.
    """

    def __init__(self, processes: Processes, screen: Screen):
        self.processes, self.screen = processes, screen
        self.console = Console(on_folder=processes.server.remember)
        self.results: dict[int, object] = {}
        self.rows = Rows()
        # A rank may have ended after its answer to an earlier call: then this call has failed.
        ended = (process for process in processes.ranks if process.status is not None)
        self.failures: dict[int, Failure] = {p.rank: self.end_of(p) for p in ended}
        self.stacks: dict[int, str] = {}
        self.changed: dict[str, None] = {}  # files edited since the ranks imported them, in order
        self.last_sign = time.monotonic()
        self.looks = Looks(processes)
        self.selector = selectors.DefaultSelector()
        self.selector.register(processes, selectors.EVENT_READ, self.hear_server)
        for p in processes.ranks:
            for source, hear in (
                (p.stdout, partial(self.hear_print, p, "stdout", p.stdout)),
                (p.stderr, partial(self.hear_print, p, "stderr", p.stderr)),
                (p.stacks, partial(self.hear_stack, p)),
                (p.channel, partial(self.hear_rank, p)),
                (p.line, partial(self.looks.take, p)),
            ):
                self.selector.register(source, selectors.EVENT_READ, hear)

    def wait(self, timeout: float | None):
        """Wait until all ranks have answered.

        Args:
            timeout: seconds without a sign of life from any rank until the call counts as a hang.

        Raises:
            WorkerError: a rank failed, or all hang, or the server is gone.
        """
        __tracebackhide__ = True
        deadline, patient = None, time.monotonic() + PATIENT_SECONDS
        while len(self.results) < len(self.processes.ranks):
            self.hear(0.05 if self.failures else min(0.5, (timeout or 1) / 4))
            self.screen.draw()
            now = time.monotonic()
            if now > patient and not any(process.joined for process in self.processes.ranks):
                patient = float("inf")
                if watched():
                    say(STARTING)
            if self.failures:
                likely = not all(f.consequence for f in self.failures.values())
                patience = SETTLE_SECONDS if likely else COMPLAINT_SECONDS
                deadline = min(deadline or now + patience, now + patience)
                if now >= deadline or self.all_ended():
                    self.ask_for_stacks()
                    raise blame(list(self.failures.values()), self.whereabouts(), self.stacks)
            elif stuck := self.looks.prove(set(self.results)):
                self.ask_for_stacks()
                raise self.hang(explain(stuck, set(self.results)))
            elif (silence := self.silence(timeout)) and now > self.last_sign + silence:
                self.ask_for_stacks()
                self.hear(STACK_SECONDS)
                if self.last_sign <= now:
                    raise self.hang(silence)
                self.stacks.clear()  # no hang: the signal has ended a long call in C
        self.hear(0)  # output just before the last answer

    def silence(self, timeout: float | None) -> float | None:
        """Return the limit for ranks that have met, or a longer one for ranks that still start."""
        met = any(process.joined for process in self.processes.ranks)
        return timeout if met or timeout is None else max(timeout, START_SECONDS)

    def hang(self, reason: float | str) -> WorkerError:
        return blame_hang(reason, self.whereabouts(), self.stacks, self.looks.on_gpus())

    def close(self):
        """Show the rest of the output. The ranks themselves belong to the cluster."""
        self.selector.close()
        self.console.finish()
        self.screen.finish()
        self.rows.finish()

    def all_ended(self) -> bool:
        return len(self.results) + len(self.failures) == len(self.processes.ranks)

    def whereabouts(self) -> dict[int, str]:
        """Return "done" for each rank that has returned, and "" for the others."""
        return {p.rank: "done" if p.rank in self.results else "" for p in self.processes.ranks}

    def hear(self, pause: float):
        for key, _ in self.selector.select(pause):
            if not key.data():
                self.selector.unregister(key.fileobj)

    def hear_print(self, process: RankProcess, name: str, fd: int) -> bool:
        data = os.read(fd, READ)
        if data:
            self.sign_of_life()
            self.console.feed(process.rank, name, data)
        return bool(data)

    def hear_stack(self, process: RankProcess) -> bool:
        data = os.read(process.stacks, READ)
        self.stacks[process.rank] = self.stacks.get(process.rank, "") + data.decode()
        return bool(data)

    def hear_rank(self, process: RankProcess) -> bool:
        rank = process.rank
        try:
            for message, fd in process.channel.messages():
                self.sign_of_life()
                match message:
                    case ("log", seconds, values):
                        record = {"rank": rank, **values, "seconds": seconds}
                        if self.rows.add(record):
                            self.screen.point(record)
                    case ("track", label, done, total):
                        self.screen.progress(rank, label, done, total)
                    case ("problem", why):
                        process.problem = why
                    case ("joined",):
                        process.joined = True
                    case ("later",):
                        self.processes.later = True
                    case ("changed", files):
                        self.changed.update(dict.fromkeys(files))
                    case ("result", pickled, sizes):
                        self.take_result(rank, Parcel(pickled, sizes, fd))
                    case ("error", report):
                        self.failures[rank] = Failure(rank=rank, **report)
        except EOFError:
            return False
        return True

    def take_result(self, rank: int, parcel: Parcel):
        try:
            self.results[rank] = unpack(parcel)
        except Exception as error:
            self.failures[rank] = Failure(
                rank=rank,
                when=time.monotonic(),
                kind=type(error).__name__,
                message=str(error),
                verb="returned a value that the notebook cannot rebuild:",
            )
        finally:
            parcel.close()

    def hear_server(self) -> bool:
        for process in self.processes.notices():
            if process.rank in self.results or process.rank in self.failures:
                continue
            self.sign_of_life()
            while readable(process.channel) and self.hear_rank(process):  # its last messages
                pass
            if process.rank not in self.results and process.rank not in self.failures:
                self.failures[process.rank] = self.end_of(process)
        return True

    def end_of(self, process: RankProcess) -> Failure:
        """Build the failure of a rank that ended without an answer."""
        status, message = process.status, process.problem
        if not process.joined and status >= 0 and status != START_FAILED:
            status, message = START_FAILED, f"its process ended with exit code {status}"
        return Failure(process.rank, time.monotonic(), message=message, status=status)

    def farewell(self, seconds: float):
        """Show the output of ranks that leave, until they are gone."""
        until = time.monotonic() + seconds
        while any(p.status is None for p in self.processes.ranks) and time.monotonic() < until:
            self.hear(0.05)

    def ask_for_stacks(self):
        running = [
            p.rank
            for p in self.processes.ranks
            if p.status is None and p.rank not in self.results and p.rank not in self.failures
        ]
        self.processes.signal(running, STACK_SIGNAL)
        until = time.monotonic() + STACK_SECONDS
        written = None
        while time.monotonic() < until:
            self.hear(STACK_QUIET)
            before, written = written, [len(self.stacks.get(rank, "")) for rank in running]
            if all(written) and written == before:  # faulthandler writes a line at a time
                break

    def sign_of_life(self):
        self.last_sign = time.monotonic()
        self.looks.sign_of_life()

"""The ranks of a call that failed, kept as they were for a debugger.

They are stopped, as by Ctrl-Z, so they cost no time; their memory stays in use. They end with the
next call, with the error itself, with the notebook, or when nobody has looked at them for a while.
"""

import os
import signal
import threading
import weakref

from helpers.runtime.failure import WorkerError
from helpers.runtime.launcher import interactive
from helpers.runtime.local.channel import readable
from helpers.runtime.local.processes import Processes

KEEP_SECONDS = 300.0  # after the failure, and after each command of a debugger
GONE = (
    "The ranks of this error are gone: they are kept until the next call, and for "
    "5 minutes at most. Run the cell again, then enter the debugger."
)


class Gone(Exception):
    """A rank that was kept does not live any more."""


class Kept:
    """Ranks that wait, stopped, for a debugger.

    Attributes:
        first: the rank to enter first.
    """

    def __init__(self, processes: Processes, first: int):
        self.processes, self.first, self.pid = processes, first, os.getpid()
        self.size = len(processes.ranks)
        self.live = [p.rank for p in processes.ranks if p.status is None]
        processes.signal(self.live, signal.SIGSTOP)
        processes.tell(release=KEEP_SECONDS)
        self.end = weakref.finalize(self, kill, processes, self.pid, 0.0)

    def ask(self, rank: int, command: str) -> str:
        """Let the rank go on for as long as it takes to answer a debugger's command.

        Raises:
            Gone: it lives no more.
        """
        if not self.alive(rank):
            raise Gone(f"Rank {rank} has ended.")
        self.processes.tell(release=KEEP_SECONDS)
        self.processes.signal([rank], signal.SIGCONT)
        line = self.processes.ranks[rank].line
        try:
            line.send("debug", command)
            while True:
                (answer, *_), _ = line.receive()
                if isinstance(answer, str):  # else it is about an earlier look
                    return answer
        except (EOFError, OSError):
            raise Gone(f"Rank {rank} has ended.") from None
        except KeyboardInterrupt:  # it would answer this command to the next one
            self.drop()
            raise
        finally:
            self.processes.signal([rank], signal.SIGSTOP)

    def alive(self, rank: int) -> bool:
        processes = self.processes
        try:
            while processes.ranks and readable(processes):
                processes.notices()
        except WorkerError:  # the server is gone
            return False
        return bool(processes.ranks) and processes.ranks[rank].status is None

    def drop(self, wait: float = 0.0):
        """Kill the ranks."""
        if self.end.detach():
            kill(self.processes, self.pid, wait)


def kill(processes: Processes, owner: int, wait: float):
    """In a fork of the notebook they are somebody else's."""
    if owner == os.getpid():
        processes.kill(wait)


_latest: weakref.ref[Kept] | None = None


def keep(processes: Processes, error: BaseException) -> bool:
    """Keep the ranks of a call that failed with `error`, where a person may debug them.

    Not in a thread: nobody sees its error. Not after a death: what there was to see is gone.
    """
    global _latest
    if not (isinstance(error, WorkerError) and error.kind in ("exception", "hang")):
        return False
    if not interactive() or threading.current_thread() is not threading.main_thread():
        return False
    error.kept = Kept(processes, error.first if error.rank is None else error.rank)
    _latest = weakref.ref(error.kept)
    return True


def drop(wait: float):
    """Before another call: kill the ranks that are kept from the last one."""
    kept = _latest and _latest()
    if kept:
        kept.drop(wait)

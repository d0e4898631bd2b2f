"""Keep the ranks of a failed call, as they were, for a debugger.

The ranks are stopped, as with Ctrl-Z: they use memory, and no processor time. They end with the
next call, with the error itself, with the notebook, or after a while without a debugger's command.
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
    """A kept rank has ended."""


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
        """Let the rank run while it answers one command of a debugger; return the answer.

        Raises:
            Gone: the rank has ended.
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
                if isinstance(answer, str):  # otherwise it answers an earlier look
                    return answer
        except (EOFError, OSError):
            raise Gone(f"Rank {rank} has ended.") from None
        except KeyboardInterrupt:  # the next command would get the answer to this one
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
    """Kill the ranks, unless this process is a fork of the notebook that owns them."""
    if owner == os.getpid():
        processes.kill(wait)


_latest: weakref.ref[Kept] | None = None


def keep(processes: Processes, error: BaseException) -> bool:
    """Keep the ranks of a call that failed with `error`, if a person may debug them.

    A call in a thread keeps none, because nobody sees its error. A rank that died leaves nothing
    to debug.
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
    """Kill the ranks that are kept from the last call, before another call."""
    kept = _latest and _latest()
    if kept:
        kept.drop(wait)

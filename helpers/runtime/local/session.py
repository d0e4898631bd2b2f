"""Keep the ranks of a failed call for a debugger, and enter them: a prompt, and `%debug`.

The ranks are stopped, as with Ctrl-Z: they use memory, and no processor time. They end with the
next call, with the error itself, with the notebook, or after a while without a debugger's command.
"""

import os
import re
import signal
import sys
import threading
import weakref

from helpers.runtime.failure import WorkerError
from helpers.runtime.launcher import interactive
from helpers.runtime.local.channel import readable
from helpers.runtime.local.forkserver.processes import Processes
from helpers.runtime.screen import shell
from helpers.runtime.stacks import cell_name

KEEP_SECONDS = 300.0  # after the failure, and after each command of a debugger
GONE = (
    "The ranks of this error are gone: they are kept until the next call, and for "
    "5 minutes at most. Run the cell again, then enter the debugger."
)
LEAVE = ("q", "quit", "exit", "EOF")
HELP = "p x, or just x: a value · up, down, w, l: the stack · rank 1: another rank · q: leave"
PLACE = re.compile(r"^(> |  |-> )(\S+)\((\d+)\)", re.MULTILINE)  # pdb's form for a line of a file


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

    def debug(self, rank: int | None = None):
        """Ask for commands and show the rank's answers, until the reader leaves."""
        here = self.first if rank is None else rank
        if not 0 <= here < self.size:
            raise ValueError(f"no rank {rank}: there are ranks 0 to {self.size - 1}")
        try:
            if not self.alive(here):
                raise Gone
            print(HELP)
            show(self.ask(here, ""))
            while (line := input(f"rank {here} ▸ ").strip()) not in LEAVE:
                if wanted := re.fullmatch(r"rank +(\d+)", line):
                    here = self.switch(here, int(wanted[1]))
                elif line:
                    show(self.ask(here, line))
        except Gone as gone:
            print(str(gone) or GONE)
        except (EOFError, KeyboardInterrupt):
            print()

    def switch(self, here: int, wanted: int) -> int:
        if wanted >= self.size:
            print(f"There are ranks 0 to {self.size - 1}.")
            return here
        show(self.ask(wanted, ""))
        return wanted


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
    offer(error)
    return True


def drop(wait: float):
    """Kill the ranks that are kept from the last call, before another call."""
    kept = _latest and _latest()
    if kept:
        kept.drop(wait)


def show(text: str):
    """Print the text; a cell gets its name, where the rank knows only a file without content."""
    text = PLACE.sub(lambda m: f"{m[1]}{cell_name(m[2])}({m[3]})", text)
    print(text, end="" if text.endswith("\n") else "\n")


def offer(error: WorkerError):
    """Add to the error how to enter its ranks; in IPython, `%debug` does."""
    if session := shell():
        take_over(session)
    how = "%debug" if session else "import sys; sys.last_value.debug()"
    where = "where it failed" if error.kind == "exception" else "where it waits"
    error.add_note(
        f"{how} enters rank {error.kept.first} {where}; the ranks are kept until the next call, "
        "5 minutes at most."
    )


def take_over(session):
    """Have `%debug` enter the ranks of a WorkerError; in all other cases it works as before."""
    own = session.find_magic("debug", "line")
    if getattr(own, "enters_ranks", False):
        return

    def magic(line, cell=None):
        error = getattr(sys, "last_value", None)
        if line.strip() or cell is not None or getattr(error, "kept", None) is None:
            return own(line, cell)
        return error.debug()

    magic.enters_ranks = True
    magic.__doc__ = own.__doc__
    session.register_magic_function(magic, magic_kind="line_cell", magic_name="debug")

"""The notebook's side of a debugging session: a prompt, and `%debug`."""

import re
import sys

from helpers.runtime.failure import WorkerError
from helpers.runtime.local.kept import GONE, Gone, Kept
from helpers.runtime.stacks import cell_name

LEAVE = ("q", "quit", "exit", "EOF")
HELP = "p x, or just x: a value · up, down, w, l: the stack · rank 1: another rank · q: leave"
PLACE = re.compile(r"^(> |  |-> )(\S+)\((\d+)\)", re.MULTILINE)  # pdb's form for a line of a file


def debug(error: WorkerError, rank: int | None = None):
    """Ask for commands and show the rank's answers, until the reader leaves."""
    kept: Kept | None = error.kept
    if kept is None:
        print("Ranks are kept for a debugger only after a failure in a notebook or at a prompt.")
        return
    here = kept.first if rank is None else rank
    if rank is not None and not 0 <= rank < kept.size:
        raise ValueError(f"no rank {rank}: there are ranks 0 to {kept.size - 1}")
    try:
        if not kept.alive(here):
            raise Gone
        print(HELP)
        show(kept.ask(here, ""))
        while (line := input(f"rank {here} ▸ ").strip()) not in LEAVE:
            if wanted := re.fullmatch(r"rank +(\d+)", line):
                here = switch(kept, here, int(wanted[1]))
            elif line:
                show(kept.ask(here, line))
    except Gone as gone:
        print(str(gone) or GONE)
    except (EOFError, KeyboardInterrupt):
        print()


def switch(kept: Kept, here: int, wanted: int) -> int:
    if wanted >= kept.size:
        print(f"There are ranks 0 to {kept.size - 1}.")
        return here
    show(kept.ask(wanted, ""))
    return wanted


def show(text: str):
    """Print the text; a cell gets its name, where the rank knows only a file without content."""
    text = PLACE.sub(lambda m: f"{m[1]}{cell_name(m[2])}({m[3]})", text)
    print(text, end="" if text.endswith("\n") else "\n")


def offer(error: WorkerError):
    """Add to the error how to enter its ranks; in IPython, `%debug` does."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell:
        take_over(shell)
    how = "%debug" if shell else "import sys; sys.last_value.debug()"
    where = "where it failed" if error.kind == "exception" else "where it waits"
    error.add_note(
        f"{how} enters rank {error.kept.first} {where}; the ranks are kept until the next call, "
        "5 minutes at most."
    )


def take_over(shell):
    """Have `%debug` enter the ranks of a WorkerError; in all other cases it works as before."""
    own = shell.find_magic("debug", "line")
    if getattr(own, "enters_ranks", False):
        return

    def magic(line, cell=None):
        error = getattr(sys, "last_value", None)
        if line.strip() or cell is not None or getattr(error, "kept", None) is None:
            return own(line, cell)
        return debug(error)

    magic.enters_ranks = True
    magic.__doc__ = own.__doc__
    shell.register_magic_function(magic, magic_kind="line_cell", magic_name="debug")

"""The rank's side of a debugging session: Python's own debugger, one command at a time.

The debugger runs in the listener's thread and looks at frames of the main thread: the frames that
an exception has left, or the frames in which the main thread still is. None of them can go on.
"""

import io
import pdb
import sys
import threading
from itertools import dropwhile
from types import TracebackType

import torch

from helpers.runtime.stacks import BEGIN, library, ours

LONGEST = 20_000  # characters of one answer
MOVES = "continue c cont next n step s until unt return r jump j run restart interact debug"
TENSOR = {"threshold": 60, "edgeitems": 2}  # how many values of a tensor to show


class Debugger(pdb.Pdb):
    """Looks around in a rank that has stopped.

    Args:
        trace: of the exception that ended the function; None if the function still runs.
    """

    def __init__(self, trace: TracebackType | None):
        super().__init__(stdin=io.StringIO(), stdout=io.StringIO(), nosigint=True, readrc=False)
        torch.set_printoptions(**TENSOR)
        self.reset()
        running = sys._current_frames()[threading.main_thread().ident]
        self.setup(None if trace else running, trace)
        callee = "torch/distributed" if trace else ""
        while self.curindex and library(file := file_of(self.curframe)) and callee in file:
            self.onecmd("up")  # to the line that called into PyTorch
        self.said()

    def answer(self, command: str) -> str:
        """Return the debugger's answer to a command; for "" that is the current place."""
        if not self.anywhere:  # `get_stack` has set it
            return "This rank is not in your function: it has returned, or never started it.\n"
        if not command:
            self.print_stack_entry(self.stack[self.curindex])
            return self.said()
        self.cmdqueue = [command]
        while self.cmdqueue:
            self.onecmd(self.precmd(self.cmdqueue.pop(0)))
        text = self.said()
        return text if len(text) <= LONGEST else text[:LONGEST] + " …\n"

    def said(self) -> str:
        text = self.stdout.getvalue()
        self.stdout.seek(0)
        self.stdout.truncate()
        return text

    def get_stack(self, frame, trace):
        """Return the stack without the frames that only start the student's function."""
        stack, _ = super().get_stack(frame, trace)
        inside = list(dropwhile(lambda entry: not begins(entry[0]), stack))[1:]
        kept = [entry for entry in inside if not ours(file_of(entry[0]))]
        self.anywhere = bool(kept)
        stack = kept or stack
        return stack, len(stack) - 1

    def displayhook(self, value):
        if value is not None:
            self.message(shown(value))

    def do_p(self, expression):
        """p expression: print its value."""
        try:
            self.message(shown(self._getval(expression)))
        except Exception:  # pdb has printed the reason
            pass

    do_pp = do_p


def stay(name: str):
    """Return a replacement for a command that would make the rank go on."""
    said = f"This rank has stopped for good: look around, it cannot go on. A variable? p {name}"
    return lambda debugger, _: debugger.message(said)


for _name in MOVES.split():
    setattr(Debugger, f"do_{_name}", stay(_name))


def begins(frame) -> bool:
    """Does this frame call the student's function?"""
    return (file_of(frame), frame.f_code.co_name) == (BEGIN, "run")


def file_of(frame) -> str:
    return frame.f_code.co_filename


def shown(value) -> str:
    """Format a value; a tensor's shape, type and device come before its numbers."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    kind = str(value.dtype).removeprefix("torch.")
    return f"shape {tuple(value.shape)}, {kind}, {value.device}\n{value.detach()!r}"

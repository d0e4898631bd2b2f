"""A thread in each rank that answers the notebook while the rank's function runs.

The main thread may wait inside a collective, in compiled code that no signal handler of Python's
can reach. It has released the interpreter's lock there, so another thread can still look.
"""

import socket
import threading
import traceback
import weakref
from types import TracebackType

import torch.distributed as dist

from helpers.runtime.local.channel import Channel
from helpers.runtime.local.whereabouts import Observer

NAME = "helpers-listener"

_trace: TracebackType | None = None
_group: weakref.ref | None = None


def remember(error: BaseException):
    """Keep the failed function's frames for a debugger, until the process ends."""
    global _trace
    _trace = error.__traceback__


def joined():
    """Remember the ranks' process group: of one that a function makes itself, less is known."""
    global _group
    _group = weakref.ref(dist.group.WORLD)


def listen(fd: int):
    """Answer on this descriptor until the notebook hangs up."""
    line = Channel(socket.socket(fileno=fd))
    threading.Thread(target=answer, args=(line,), daemon=True, name=NAME).start()


def answer(line: Channel):
    observer, debugger = Observer(), None
    while True:
        try:
            message, _ = line.receive()
            match message:
                case ("look",):
                    line.send(observer.look(_group and _group()))
                case ("debug", command):
                    debugger = debugger or start_debugger()
                    line.send(debugger.answer(command))
        except (EOFError, OSError):  # hung up; or the function has closed what is not its own
            return
        except Exception:  # a debugger must not leave its reader waiting
            line.send(traceback.format_exc())


def start_debugger():
    from helpers.runtime.local.debugger import Debugger  # here: few ranks ever need it

    return Debugger(_trace)

"""A thread in each rank that answers the notebook while the rank's function runs.

The main thread may wait inside a collective, in compiled code that no signal handler of Python's
can reach. It has released the interpreter's lock there, so another thread can still look.
"""

import _thread
import socket
import traceback
import weakref
from types import TracebackType

import torch.distributed as dist

from helpers.runtime.local.channel import Channel

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
    _thread.start_new_thread(answer, (line,))  # Thread.start would wait until it runs


def answer(line: Channel):
    observer = debugger = None
    while True:
        try:
            message, _ = line.receive()
            match message:
                case ("look",):
                    observer = observer or start_observer()
                    line.send(observer.look(_group and _group()))
                case ("debug", command):
                    debugger = debugger or start_debugger()
                    line.send(debugger.answer(command))
        except (EOFError, OSError):  # hung up; or the function has closed what is not its own
            return
        except Exception:  # a debugger must not leave its reader waiting
            line.send(traceback.format_exc())


# Both are imported only when they are needed: every rank starts a listener, and few are asked.


def start_observer():
    from helpers.runtime.local.whereabouts import Observer

    return Observer()


def start_debugger():
    from helpers.runtime.local.debugger import Debugger

    return Debugger(_trace)

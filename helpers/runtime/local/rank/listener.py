"""A thread in each rank that answers the notebook while the rank's function runs.

The main thread may wait inside a collective, in compiled code that no Python signal handler can
interrupt. The main thread has released the interpreter's lock there, so another thread can look.
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
    """Remember the ranks' process group: less is known of a group that the function makes."""
    global _group
    _group = weakref.ref(dist.group.WORLD)


def listen(fd: int):
    """Answer on this descriptor until the notebook hangs up."""
    line = Channel(socket.socket(fileno=fd))
    _thread.start_new_thread(answer, (line,))  # Thread.start would wait until the thread runs


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
        except (EOFError, OSError):  # the notebook hung up, or the function closed this descriptor
            return
        except Exception:  # the reader must get an answer
            line.send(traceback.format_exc())


# These imports wait until they are needed: every rank has a listener, and few are asked.


def start_observer():
    from helpers.runtime.local.hangs.whereabouts import Observer

    return Observer()


def start_debugger():
    from helpers.runtime.local.rank.debugger import Debugger

    return Debugger(_trace)

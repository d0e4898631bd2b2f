"""Turn a fresh process into a rank, at once or when it is needed."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import types
from multiprocessing import reduction

from helpers.runtime.local.forkserver.orphans import C, become_subreaper
from helpers.runtime.local.sources import state_of

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../.."))
START_FAILED = 70  # exit code of a rank that never reached the function
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
SPARE = "spare rank"  # a process's name, as `top` shows it, while it waits


class Handed:
    """A descriptor on its way into a process that `spawn` starts."""

    def __init__(self, fd: int):
        self.fd = fd

    def __reduce__(self):
        return Handed.taken, (reduction.DupFd(self.fd),)

    @staticmethod
    def taken(duplicate) -> int:
        return duplicate.detach()


def become_rank(channel: int, stdout: int, stderr: int, stacks: int, foreign=(), ours=()):
    """Turn this fresh process into a rank; never returns.

    Args:
        channel, stdout, stderr, stacks: the rank's descriptors.
        foreign: inherited descriptors that do not belong to the rank.
        ours: `own_modules()`. A look through all modules would copy their pages in a fork.
    """

    def begin():
        lead_a_session()
        close(foreign)
        redirect(stdout, stderr)
        forget(ours or own_modules())
        return work(channel, stacks)

    end_with(begin)


def become_spare(line: socket.socket, foreign, ours):
    """Turn this fresh process into a rank as far as possible, and wait for its order.

    Args:
        line: the server sends the rank's number over it, with the rank's four descriptors.
        foreign, ours: see `become_rank`.
    """

    def begin():
        lead_a_session()
        before = call_it(SPARE)
        close(foreign)
        forget(ours)
        with contextlib.suppress(Exception):  # a mistake in a file is told once there is a reader
            from helpers.runtime.local.rank import program  # noqa: F401
        imported = states()
        order, fds, _, _ = socket.recv_fds(line, 16, 4)
        if not order:  # the server is gone
            os._exit(0)
        line.close()
        channel, stdout, stderr, stacks = fds
        redirect(stdout, stderr)
        call_it(before)
        multiprocessing.current_process().name = f"rank {int(order)}"
        if states() != imported:
            forget(own_modules())
        return work(channel, stacks)

    end_with(begin)


def end_with(begin):
    """End this process with the exit code that `begin` returns."""
    code = START_FAILED
    try:
        code = begin()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(code)  # `work` has ended everything that Python would end here


def work(channel: int, stacks: int) -> int:
    from helpers.runtime.local import network
    from helpers.runtime.local.channel import Channel

    line = Channel(socket.socket(fileno=channel))
    try:
        network.take_place(*line.receive())  # while there is one thread: PyTorch may start more
        from helpers.runtime.local.rank import program

        return program.work(line, stacks)
    except Exception as error:
        with contextlib.suppress(OSError):  # the notebook is gone
            line.send("problem", f"{type(error).__name__}: {error}")
        raise


def states() -> dict[str, tuple[int, int] | None]:
    """The state of the files of `helpers` that this process has imported."""
    files = (getattr(sys.modules[name], "__file__", None) for name in own_modules())
    return {file: state_of(file) for file in files if file}


def lead_a_session():
    """Handle signals as a new process does, die with the server, and adopt orphans."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a request may arrive before the rank listens
    server = os.getppid()
    os.setsid()
    if sys.platform == "linux":
        C.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
    become_subreaper()


def call_it(name: str) -> str:
    """Give this process another name; returns the old one. Linux."""
    if sys.platform != "linux":
        return ""
    with open("/proc/self/comm") as file:
        before = file.read().strip()
    C.prctl(PR_SET_NAME, name.encode())
    return before


def close(descriptors):
    for fd in descriptors:
        with contextlib.suppress(OSError):  # closed since the list was made
            os.close(fd)


def redirect(stdout: int, stderr: int):
    for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, target)
        os.close(fd)


def own_modules() -> list[str]:
    """The modules of `helpers` in this process."""
    return [name for name in sys.modules if name.split(".")[0] == "helpers"]


def forget(ours: list[str]):
    """Drop the server's state: its part of `helpers`, its start method, its `__main__`."""
    for name in ours:
        del sys.modules[name]
    multiprocessing.set_start_method(None, force=True)
    sys.modules["__main__"] = types.ModuleType("__main__")
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)

"""The notebook's hold on its server: start it, connect to it, end it."""

import atexit
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from helpers.runtime.failure import CannotStart, ServerLost, WorkerError
from helpers.runtime.private import anonymous_file

ROOT = Path(__file__).parents[3]
PROGRAM = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from helpers.runtime.local.server import main
main(*sys.argv[1:])
"""
END_SECONDS = 3.0  # for a server that hung up to be gone
START = "HELPERS_START"  # environment: "fork" or "spawn", to choose against the default


def start_method() -> str:
    """Fork where a process that has imported torch can be forked safely: on Linux."""
    return os.environ.get(START) or ("fork" if sys.platform == "linux" else "spawn")


class Server:
    """The server process of this notebook. It goes when the notebook goes."""

    def __init__(self):
        early, early_there = socket.socketpair()
        late, late_there = socket.socketpair()
        self.early, self.late = early, late
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.words = ""
        self.served = False  # has it ever started a rank?
        self.errors = os.fdopen(anonymous_file(), "w+b", buffering=0)
        # One BLAS thread: a process that forks must have no thread but its own. Huge pages: there
        # are fewer to share out, so a fork takes 6 ms in place of 9. Ranks get the notebook's
        # environment back.
        environ = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        }
        fds = (early_there.fileno(), late_there.fileno())
        arguments = [str(ROOT), *map(str, fds), str(self.pid), start_method()]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *arguments],
                pass_fds=fds,
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                start_new_session=True,  # an interrupt meant for the notebook must not reach it
            )
        except OSError as error:  # no memory, too many processes, no such Python any more
            for end in (early, late, self.errors):
                end.close()
            raise CannotStart(str(error)) from None
        finally:
            early_there.close()
            late_there.close()
        if start_method() == "spawn":
            self.retire_early()

    def usable(self) -> bool:
        """Is it this process's own (and not inherited by a fork), and alive?"""
        return self.pid == os.getpid() and self.process.poll() is None

    def retire_early(self):
        """Let the first generation go once the ranks that it has are gone."""
        if self.early:
            self.say(self.early, b"retire\n")
            self.early.close()
            self.early = None

    def connect(self) -> socket.socket:
        """A socket to whichever generation is ready, for the ranks of one cluster."""
        here, there = socket.socketpair()
        with self.lock, there:
            if self.early and (self.late_is_ready() or not self.hand_over(self.early, there)):
                self.retire_early()
            if self.early is None and not self.hand_over(self.late, there):
                here.close()
                raise self.lost()
        return here

    def late_is_ready(self) -> bool:
        try:
            return bool(self.late.recv(16, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def hand_over(self, control: socket.socket, there: socket.socket) -> bool:
        """Give the server its end of a cluster's socket. False when that generation is gone."""
        try:
            socket.send_fds(control, [b"\n"], [there.fileno()])
        except OSError:
            return False
        return True

    def remember(self, folder: Path):
        """Have a folder removed even if the notebook is killed."""
        self.say(self.late, f"folder {folder}\n".encode())

    def stop(self):
        """Have it kill its ranks, and end. A fork of the notebook only lets go of it."""
        mine = self.pid == os.getpid()
        for control in filter(None, (self.early, self.late)):
            if mine:
                self.say(control, b"end\n")
            control.close()
        if mine:
            if self.early:  # the late generation may be importing, has no rank, and would hear late
                self.process.kill()
            self.process.wait()
        self.words = self.last_words()  # for clusters that have yet to notice
        self.errors.close()

    @staticmethod
    def say(control: socket.socket, words: bytes):
        try:
            control.sendall(words)
        except OSError:
            pass  # it is gone already

    def lost(self) -> WorkerError:
        """The error that says that it is gone."""
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # it hung up, and lives
            code = 0
        words = self.last_words()
        if code > 0 and not self.served:
            return CannotStart(f"the process that ranks come from has failed\n{words}".strip())
        return ServerLost(words)

    def last_words(self) -> str:
        """What the server wrote to its standard error."""
        if self.errors.closed:
            return self.words
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()


_server: Server | None = None
_lock = threading.Lock()


def warm() -> Server:
    """Start the server if it does not run yet. It imports in the background."""
    global _server
    with _lock:
        if _server is None or not _server.usable():
            stop()
            _server = None
            _server = Server()
        return _server


def stop():
    """At the end of the notebook."""
    if _server is not None:
        _server.stop()


atexit.register(stop)


def unlock():
    """In a fork of the notebook: the thread that held the lock was not forked along."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=unlock)

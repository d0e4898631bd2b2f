"""Start, connect to and end the notebook's server."""

import atexit
import os
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from helpers.runtime.failure import CannotStart, ServerLost, WorkerError
from helpers.runtime.local.forkserver import bytecode
from helpers.runtime.private import anonymous_file

ROOT = Path(__file__).parents[4]
PROGRAM = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from helpers.runtime.local.forkserver.server import main
main(*sys.argv[1:])
"""
LONGEST = 1_000_000  # bytes of a server's last words
END_SECONDS = 3.0  # until a server that has hung up must be gone
START = "HELPERS_START"  # environment: "fork" or "spawn", to override the default
EARLY = "HELPERS_EARLY"  # environment: "no" if the first call may wait for all imports


def start_method() -> str:
    """Return "fork" where a process that has imported torch can fork safely: on Linux.

    Raises:
        ValueError: the environment names another method.
    """
    chosen = os.environ.get(START) or ("fork" if sys.platform == "linux" else "spawn")
    if chosen not in ("fork", "spawn"):
        raise ValueError(f'{START} is "fork" or "spawn", not {chosen!r}: set one, or unset it')
    return chosen


def open_standard():
    """Open descriptors 0 to 2 where they are closed: a child's own streams get these numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(fd)


class Server:
    """The server process of this notebook. It ends with the notebook."""

    def __init__(self):
        open_standard()
        early, early_there = socket.socketpair()
        late, late_there = socket.socketpair()
        self.early, self.late = early, late
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.served = False  # has it ever started a rank?
        self.errors, self.words, self.reading = anonymous_file(), "", threading.Lock()
        self.close = weakref.finalize(self, os.close, self.errors)
        # One BLAS thread: a process that forks must have no other thread. Huge pages: with fewer
        # pages to share, a fork takes 6 ms instead of 9. Ranks get the notebook's environment.
        environ = {
            **os.environ,
            **bytecode.environ(),
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
        except OSError as error:  # no memory, too many processes, or this Python has been removed
            early.close()
            late.close()
            raise CannotStart(str(error)) from None
        finally:
            early_there.close()
            late_there.close()
        if start_method() == "spawn" or os.environ.get(EARLY) == "no":
            self.retire_early()

    def usable(self) -> bool:
        """Is the server alive, and this process's own (and not inherited by a fork)?"""
        return self.pid == os.getpid() and self.process.poll() is None

    def retire_early(self):
        """Let the first generation end once its ranks are gone."""
        if self.early:
            self.say(self.early, b"retire\n")
            self.early.close()
            self.early = None

    def connect(self) -> socket.socket:
        """Return a socket to the generation that is ready, for the ranks of one cluster."""
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
        except OSError:  # nothing has come yet; or it is gone, and has not read all of our words
            return False

    def hand_over(self, control: socket.socket, there: socket.socket) -> bool:
        """Send the server its end of a cluster's socket; False if that generation is gone."""
        try:
            socket.send_fds(control, [b"\n"], [there.fileno()])
        except OSError:
            return False
        return True

    def remember(self, folder: Path):
        """Have the server remove a folder at the end, even if the notebook is killed."""
        self.say(self.late, f"folder {folder}\n".encode())

    def prepare(self, ranks: int):
        """Have the server fork processes for the next call, while nobody waits."""
        self.say(self.late, b"spares %d\n" % ranks)

    def stop(self):
        """Have the server kill its ranks and end; a fork of the notebook only hangs up."""
        mine = self.pid == os.getpid()
        for control in filter(None, (self.early, self.late)):
            if mine:
                self.say(control, b"end\n")
            control.close()
        if mine:
            if self.early:  # the late generation may still import, has no rank, and would hear late
                self.process.kill()
            self.process.wait()
            self.last_words()  # for clusters that have not noticed yet
            with self.reading:
                self.close()

    @staticmethod
    def say(control: socket.socket, words: bytes):
        try:
            control.sendall(words)
        except OSError:
            pass  # the server is gone already

    def lost(self) -> WorkerError:
        """Return the error for a server that is gone."""
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # the server hung up, but lives: the next call needs
            self.process.kill()  # another
            code = self.process.wait()
        words = self.last_words()
        if code > 0 and not self.served:
            return CannotStart(f"the process that ranks come from has failed\n{words}".strip())
        return ServerLost(words)

    def last_words(self) -> str:
        """Return the server's standard error, also after its end."""
        with self.reading:
            if self.close.alive:  # not `read`: the server shares the position in the file
                said = os.pread(self.errors, LONGEST, 0)
                self.words = said.decode(errors="replace").strip()
            return self.words


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
    """End the server at the end of the notebook."""
    if _server is not None:
        _server.stop()


atexit.register(stop)


def unlock():
    """Renew the lock in a fork of the notebook, where the thread with the lock does not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=unlock)

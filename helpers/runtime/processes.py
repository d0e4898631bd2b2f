"""The notebook's side of the server: have ranks started, signalled, and ended."""

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from helpers.runtime.channel import Channel, anonymous_file

SERVER = Path(__file__).with_name("server.py")
RELEASE_SECONDS = 5.0  # what ranks that were told to leave may take
START = "HELPERS_START"  # environment: "fork" or "spawn", to choose against the default


class ServerLost(Exception):
    """The server process is gone, and its ranks with it."""


def start_method() -> str:
    """Fork where a process that has imported torch can be forked safely: on Linux."""
    return os.environ.get(START) or ("fork" if sys.platform == "linux" else "spawn")


class Server:
    """The server process of this notebook. It goes when the notebook goes."""

    def __init__(self):
        early, early_there = socket.socketpair()
        late, late_there = socket.socketpair()
        self.early, self.late = early, late
        self.pid = os.getpid()
        self.errors = open(anonymous_file(), "w+b", buffering=0)
        # One BLAS thread: a process that forks must have no thread but its own. Huge pages: there
        # are fewer to share out, so a fork takes 6 ms in place of 9. Ranks get the notebook's
        # environment back.
        environ = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        }
        fds = (early_there.fileno(), late_there.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-P", SERVER, *map(str, fds), str(self.pid), start_method()],
            pass_fds=fds,
            env=environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,  # an interrupt meant for the notebook must not reach it
        )
        early_there.close()
        late_there.close()
        if start_method() == "spawn":
            self.retire_early()

    def usable(self) -> bool:
        """Is it this process's own (and not inherited by a fork), and alive?"""
        return self.pid == os.getpid() and self.process.poll() is None

    def retire_early(self):
        if self.early:
            self.early.close()
            self.early = None

    def connect(self) -> socket.socket:
        """A socket to whichever generation is ready, for the ranks of one cluster."""
        if self.early:
            self.late.setblocking(False)
            try:
                if self.late.recv(16):
                    self.retire_early()
            except BlockingIOError:
                pass
            finally:
                self.late.setblocking(True)
        here, there = socket.socketpair()
        try:
            socket.send_fds(self.early or self.late, [b"c"], [there.fileno()])
        except OSError as error:
            raise ServerLost(self.last_words()) from error
        finally:
            there.close()
        return here

    def stop(self):
        """Hang up: the server kills its ranks, and ends."""
        self.retire_early()
        self.late.close()
        self.errors.close()
        if self.pid == os.getpid():
            self.process.wait()

    def last_words(self) -> str:
        """What the server wrote to its standard error."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()


_server: Server | None = None
_lock = threading.Lock()


def warm() -> Server:
    """Start the server if it does not run yet. It imports in the background."""
    global _server
    with _lock:
        if _server is None or not _server.usable():
            if _server is None:
                atexit.register(lambda: _server.stop())
            else:
                _server.stop()
            _server = Server()
        return _server


_folder: Path | None = None


def private_folder() -> Path:
    """A folder that only this user can enter; gone when the notebook is. OSError on a full disk."""
    global _folder
    if _folder is None or not _folder.exists():
        _folder = Path(tempfile.mkdtemp(prefix="helpers-"))
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    return _folder


class RankProcess:
    """One rank, as the notebook holds it: the ends of its four descriptors."""

    def __init__(self, rank: int):
        self.rank = rank
        self.pid: int | None = None
        self.status: int | None = None  # exit code, or minus the signal, once it has ended
        here, self._channel = socket.socketpair()
        self.channel = Channel(here)
        self.stdout, self._stdout = os.pipe()
        self.stderr, self._stderr = os.pipe()
        self.stacks, self._stacks = os.pipe()
        for fd in (self.stdout, self.stderr, self.stacks):
            os.set_blocking(fd, False)

    def theirs(self) -> list[int]:
        return [self._channel.fileno(), self._stdout, self._stderr, self._stacks]

    def given_away(self):
        self._channel.close()
        for fd in (self._stdout, self._stderr, self._stacks):
            os.close(fd)

    def close(self):
        self.channel.close()
        for fd in (self.stdout, self.stderr, self.stacks):
            os.close(fd)


class Processes:
    """The rank processes of one cluster."""

    def __init__(self, workers: int):
        self.ranks: list[RankProcess] = []
        self.text = b""
        self.socket = warm().connect()
        try:
            for rank in range(workers):
                process = RankProcess(rank)
                self.ranks.append(process)
                socket.send_fds(
                    self.socket, [json.dumps({"start": rank}).encode() + b"\n"], process.theirs()
                )
                process.given_away()
        except OSError as error:
            self.close()
            raise ServerLost(str(error)) from error

    def fileno(self) -> int:
        return self.socket.fileno()

    def notices(self) -> list[RankProcess]:
        """Once readable: the ranks that have ended. ServerLost when the server has."""
        try:
            text = self.socket.recv(65536)
        except ConnectionResetError:
            text = b""
        if not text:
            raise ServerLost
        *lines, self.text = (self.text + text).split(b"\n")
        ended = []
        for line in map(json.loads, lines):
            process = self.ranks[line["rank"]]
            if "pid" in line:
                process.pid = line["pid"]
            else:
                process.status = line["status"]
                ended.append(process)
        return ended

    def signal(self, ranks: list[int], number: signal.Signals):
        self._tell(signal=[ranks, int(number)])

    def leave(self, wait: float):
        """Let the ranks end by themselves, and wait at most so many seconds until they have."""
        for process in self.ranks:
            try:
                process.channel.send("leave")
            except OSError:
                pass
        self._tell(release=RELEASE_SECONDS)
        self.wait(wait)
        self.close()

    def kill(self, wait: float):
        """Kill the ranks, and wait at most so many seconds until they are gone."""
        self.signal([process.rank for process in self.ranks], signal.SIGKILL)
        self.wait(wait)
        self.close()

    def wait(self, seconds: float):
        until = time.monotonic() + seconds
        while any(process.status is None for process in self.ranks):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                break
            try:
                self.notices()
            except ServerLost:
                break

    def remember(self, folder: Path):
        """Have the folder removed even if the notebook is killed."""
        self._tell(folder=str(folder))

    def _tell(self, **message):
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the server is gone: the ranks are as well

    def close(self):
        """Hang up. Ranks that were not told to leave are killed."""
        self.socket.close()
        while self.ranks:
            self.ranks.pop().close()

    __del__ = close

"""The rank processes of one cluster, seen from the notebook."""

import contextlib
import json
import os
import signal
import socket
import time

from helpers.runtime.failure import WorkerError
from helpers.runtime.local.channel import Channel, readable
from helpers.runtime.local.forkserver.client import warm
from helpers.runtime.local.forkserver.orphans import kill_group

RELEASE_SECONDS = 5.0  # until ranks that leave must be gone


class RankProcess:
    """One rank, seen from the notebook: its four descriptors, and how it ended."""

    def __init__(self, rank: int):
        self.rank = rank
        self.pid: int | None = None
        self.status: int | None = None  # exit code, or minus the signal, once it has ended
        self.line: Channel | None = None
        self.problem = ""  # why it could not be started
        self.joined = False  # has it met the other ranks?
        here, self._channel = socket.socketpair()
        self.channel = Channel(here)
        ends: list[int] = []
        try:
            for _ in range(3):
                ends += os.pipe()
        except OSError:
            for fd in ends:
                os.close(fd)
            raise
        self.stdout, self._stdout, self.stderr, self._stderr, self.stacks, self._stacks = ends
        for fd in (self.stdout, self.stderr, self.stacks):
            os.set_blocking(fd, False)

    def theirs(self) -> list[int]:
        return [self._channel.fileno(), self._stdout, self._stderr, self._stacks]

    def given_away(self):
        self._channel.close()
        for fd in (self._stdout, self._stderr, self._stacks):
            os.close(fd)

    def send(self, *message, fd: int | None = None):
        """Send the rank a message; if it has ended, the server reports how."""
        with contextlib.suppress(OSError):
            self.channel.send(*message, fd=fd)

    def listen(self):
        """Open a second line, on which the rank answers while its function runs."""
        here, there = socket.socketpair()
        self.line = Channel(here)
        with there:
            self.send("listen", fd=there.fileno())

    def close(self):
        self.channel.close()
        if self.line:
            self.line.close()
        for fd in (self.stdout, self.stderr, self.stacks):
            os.close(fd)


class Processes:
    """The ranks, and the socket over which the server starts, signals and ends them."""

    def __init__(self, workers: int, method: str):
        self.workers, self.method = workers, method
        self.ranks: list[RankProcess] = []
        self.text, self.socket = b"", None
        self.pid = os.getpid()
        self.later = False  # do ranks have work left for their end?
        self.server = warm()
        self.socket = self.server.connect()
        try:
            for rank in range(workers):
                process = RankProcess(rank)
                self.ranks.append(process)
                order = json.dumps({"start": rank, "method": method}).encode() + b"\n"
                try:
                    socket.send_fds(self.socket, [order], process.theirs())
                except OSError as error:
                    raise self.server.lost() from error
                finally:
                    process.given_away()
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self.socket.fileno()

    def notices(self) -> list[RankProcess]:
        """Return the ranks that have ended, once readable. Raises ServerLost if the server has."""
        try:
            text = self.socket.recv(65536)
        except ConnectionResetError:
            text = b""
        if not text:
            raise self.server.lost()
        self.server.served = True
        *lines, self.text = (self.text + text).split(b"\n")
        ended = []
        for notice in map(json.loads, lines):
            process = self.ranks[notice.pop("rank")]
            vars(process).update(notice)  # its pid; or how it ended: status, problem
            if "status" in notice:
                ended.append(process)
        return ended

    def signal(self, ranks: list[int], number: signal.Signals):
        self.tell(signal=[ranks, int(number)])

    def leave(self):
        """Let the ranks end by themselves, within RELEASE_SECONDS."""
        for process in self.ranks:
            process.send("leave")
        self.tell(release=RELEASE_SECONDS)

    def prepare_next(self):
        """Have the server fork processes for the next call."""
        if self.method == "fork":
            self.server.prepare(self.workers)

    def kill(self, wait: float):
        """Kill the ranks, and wait at most so many seconds until they are gone."""
        if readable(self.socket) or self.begun():  # else the server still imports
            self.signal([process.rank for process in self.ranks], signal.SIGKILL)
            if not self.wait(wait):
                self.kill_directly()
        self.close()

    def begun(self) -> bool:
        """Has the server reported that it started a rank?"""
        return any(process.pid for process in self.ranks)

    def kill_directly(self):
        """Kill without the server: each rank leads a process group of everything it started."""
        for process in self.ranks:
            if process.pid and process.status is None:
                kill_group(process.pid)

    def wait(self, seconds: float) -> bool:
        """Wait at most so many seconds for the end of all ranks; return whether all are gone."""
        until = time.monotonic() + seconds
        while any(process.status is None for process in self.ranks):
            left = until - time.monotonic()
            if left <= 0 or not readable(self.socket, left):
                return False
            try:
                self.notices()
            except WorkerError:
                return False
        return True

    def tell(self, **message):
        with contextlib.suppress(OSError):  # the server is gone, and the ranks with it
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self):
        """Hang up. The server then kills all ranks, except ranks that are leaving."""
        if self.socket:
            self.socket.close()
        while self.ranks:
            self.ranks.pop().close()

    def __del__(self):  # by this name an interrupt knows that it must wait
        self.close()

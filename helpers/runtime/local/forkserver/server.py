"""The clean process that forks itself for each rank.

A rank is a fresh process, but `import torch` costs seconds. So one process per notebook imports
torch once, and forks itself for every rank: a fork shares the pages of torch and costs
milliseconds. The server has no data of the notebook, starts no thread, and never asks for a GPU, so
it can always fork safely. (The notebook's own process can fork safely only until it first uses
CUDA.)

Ranks are processes of `torch.multiprocessing`. Their start method is "fork"; it is "spawn" where a
process with torch cannot fork safely, or if the caller asks for it.

Two generations serve, so that the first call need not wait for all imports:

    server ── import torch ──┬── import what a training step needs ── serve `late` ──…
                             └── fork: serve `early` at once, until `late` is ready

The server imports only this folder's files from `helpers`, and a rank forgets them first. So a rank
reads each file of `helpers` from disk, in its present state.

While the student reads, the server forks spares: as many as the last call had ranks, at most
MOST_SPARES. A spare has run nothing; it has imported what a rank begins with, and a file that
was edited meanwhile is imported again. The next ranks are spares first, so their call need not wait
for forks.

Wire: over `early` and `late`, the notebook sends sockets, one per cluster, and lines: `folder PATH`
(remove it at the end), `spares N` (have N processes ready), `retire` (end once the last rank has
ended), `end`. Over a cluster's socket, both sides send lines of JSON. The notebook sends
`{"start": rank, "method": "fork" or "spawn"}` (with the rank's four file descriptors), `{"signal":
[ranks, number]}`, and `{"release": seconds}` (let the ranks end by themselves, then kill them). The
server sends `{"rank", "pid"}` and `{"rank", "status"}`. If a cluster's socket closes, the server
kills its ranks.
"""

import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from multiprocessing import resource_tracker

from helpers.runtime.local import network
from helpers.runtime.local.channel import ready
from helpers.runtime.local.forkserver import bytecode
from helpers.runtime.local.forkserver.bootstrap import (
    START_FAILED,
    Handed,
    become_rank,
    become_spare,
    own_modules,
)
from helpers.runtime.local.forkserver.orphans import Orphans
from helpers.runtime.local.forkserver.preload import (
    GiveWay,
    import_first,
    import_rest,
    leave_standing,
)
from helpers.runtime.local.rank.ending import open_descriptors

FDS_PER_RANK = 4  # channel, stdout, stderr, stacks
FIRST_SPARES = 2  # before the first call
MOST_SPARES = 8  # each has 13 MB of its own
POLL_SECONDS = 0.5  # between two checks of the deadlines
END_SECONDS = 2.0  # until killed ranks must be gone
GIVE_WAY_SECONDS = 0.5  # how long one call may delay the second generation's imports


@dataclass
class Ranks:
    """The ranks of one cluster, and the socket to the notebook that owns them."""

    socket: socket.socket
    rank_of: dict[int, int] = field(default_factory=dict)  # pid -> rank
    text: bytes = b""
    fds: list[int] = field(default_factory=list)
    deadline: float | None = None  # when to kill ranks that should end by themselves

    def tell(self, **message):
        try:
            if self.socket:
                self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # the notebook has hung up; the loop sees that, and kills its ranks
            pass

    def signal(self, ranks, number):
        for pid, rank in self.rank_of.items():
            if rank in ranks:
                os.kill(pid, number)

    def kill(self):
        for pid in self.rank_of:
            os.kill(pid, signal.SIGKILL)


@dataclass
class Spare:
    """A process that waits to become a rank, and the socket for its order."""

    pid: int
    line: socket.socket


class Server:
    def __init__(self, control, notebook, give_way=None, elder=None, wanted=0):
        self.control, self.give_way = control, give_way
        self.notebook = notebook  # its pid, and a pidfd if the system has them
        self.text, self.ending = b"", False
        self.clusters: list[Ranks] = []
        self.folders: set[str] = set()  # the notebook's folders, to remove at its end
        self.processes = {}  # pid -> torch.multiprocessing's Process
        self.spawned = False  # was a process spawned?
        self.modules = own_modules()
        self.wanted = wanted  # spares
        self.spares: list[Spare] = []
        self.orphans = Orphans(spare=elder)
        self.wake = os.pipe()  # a signal writes to it, and so ends the wait
        for end in self.wake:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self):
        """Serve until the notebook sends `end`, hangs up, or is gone."""
        while (self.control or self.clusters) and not self.ending:
            sockets = [self.control, self.notebook[1], *(c.socket for c in self.clusters)]
            lacking = len(self.spares) < self.wanted
            heard = ready([self.wake[0], *filter(None, sockets)], 0 if lacking else POLL_SECONDS)
            if lacking and not heard:
                self.fork_a_spare()
            if self.wake[0] in heard:
                os.read(self.wake[0], 65536)
            for cluster in [c for c in self.clusters if c.socket in heard]:
                self.hear(cluster)
            if self.control in heard:
                self.accept()
            self.reap()
            for cluster in self.clusters:
                if cluster.deadline and time.monotonic() > cluster.deadline:
                    cluster.kill()
            self.ending |= not self.notebook_lives()
        self.end()

    def end(self):
        """Leave nothing behind: no rank, no process of a rank, no folder."""
        until = time.monotonic() + END_SECONDS
        while self.processes or self.orphans.known:
            for cluster in self.clusters:
                cluster.kill()
            for spare in self.spares:
                spare.line.close()  # it ends, or the end of this process ends it
            ready([self.wake[0]], 0.01)
            self.reap()
            if time.monotonic() > until:
                break
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def notebook_lives(self):
        """Does the notebook live? Its sockets alone do not show it: a fork may keep them open."""
        pid, pidfd = self.notebook
        if pidfd is not None:  # it shows the end even before the parent has waited for the process
            return not ready([pidfd], 0)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def accept(self):
        try:
            text, fds, _, _ = socket.recv_fds(self.control, 4096, 1)
        except OSError:  # the notebook was killed before it read all our messages
            text, fds = b"", []
        for fd in fds:
            self.clusters.append(Ranks(socket.socket(fileno=fd)))
            self.wanted = 0  # a call comes first; after it the notebook asks again
        *lines, self.text = (self.text + text).split(b"\n")
        for line in lines:
            match line.decode().split(" ", 1):
                case ["folder", path]:
                    self.folders.add(path)
                case ["spares", number]:
                    self.wanted = min(int(number), MOST_SPARES)
                    for spare in self.spares[self.wanted :]:
                        spare.line.close()  # it ends
                    del self.spares[self.wanted :]
                case ["retire"]:
                    self.control.close()
                    self.control = None
                case ["end"]:
                    self.ending = True
        self.ending |= not text

    def hear(self, cluster):
        try:
            text, fds, _, _ = socket.recv_fds(cluster.socket, 4096, FDS_PER_RANK)
        except OSError:
            text, fds = b"", []
        if not text:  # hung up
            cluster.socket.close()
            cluster.socket = None
            if cluster.deadline is None:
                cluster.kill()
            return
        cluster.fds += fds
        *lines, cluster.text = (cluster.text + text).split(b"\n")
        for line in lines:
            match json.loads(line):
                case {"start": rank, "method": method}:
                    fds, cluster.fds = cluster.fds[:FDS_PER_RANK], cluster.fds[FDS_PER_RANK:]
                    try:
                        pid = self.start(rank, method, fds)
                    except OSError as error:  # no memory, or too many processes
                        cluster.tell(rank=rank, status=START_FAILED, problem=str(error))
                        continue
                    cluster.rank_of[pid] = rank
                    cluster.tell(rank=rank, pid=pid)
                case {"signal": [ranks, number]}:
                    cluster.signal(ranks, number)
                case {"release": seconds}:
                    cluster.deadline = time.monotonic() + seconds

    def start(self, rank, method, fds):
        """Start one rank; returns its pid."""
        if self.give_way:
            self.give_way.busy(GIVE_WAY_SECONDS)
        try:
            if method == "fork" and (pid := self.order_a_spare(rank, fds)):
                return pid
            if method == "fork":
                handed = (*fds, self.foreign(fds), self.modules)
            else:
                handed = tuple(map(Handed, fds))
            process = self.process(method, become_rank, handed, name=f"rank {rank}")
            self.spawned |= method == "spawn"
        finally:
            for fd in fds:
                os.close(fd)
        return process.pid

    def process(self, method, target, handed, name=None):
        """Start a process. Raises OSError: no memory, or too many processes."""
        from torch.multiprocessing import get_context

        process = get_context(method).Process(target=target, args=handed, name=name)
        process.start()
        self.processes[process.pid] = process
        return process

    def fork_a_spare(self):
        here, there = socket.socketpair()
        with there:
            handed = there, self.foreign([there.fileno()]), self.modules
            try:
                process = self.process("fork", become_spare, handed)
            except OSError:  # a call will tell
                self.wanted = 0
                here.close()
                return
        self.spares.append(Spare(process.pid, here))

    def order_a_spare(self, rank, fds) -> int | None:
        """Make a spare this rank; returns its pid, or None if there is none."""
        while self.spares:
            spare = self.spares.pop(0)
            with spare.line, contextlib.suppress(OSError):  # it has been killed
                socket.send_fds(spare.line, [b"%d" % rank], fds)
                return spare.pid
        return None

    def foreign(self, fds) -> set[int]:
        """Return the server's descriptors that a fork inherits and a rank does not need."""
        tracker = {resource_tracker.getfd()} if self.spawned else set()  # it serves forks as well
        return set(open_descriptors()) - {0, 1, 2, *fds} - tracker

    def reap(self):
        """Report which ranks have ended, and how; end the processes that they left."""
        # Ask each process, and never wait for just any child: a Process whose end other code has
        # seen counts as alive forever.
        ended = [process for process in self.processes.values() if process.exitcode is not None]
        gone = {process.pid for process in ended}
        for spare in [spare for spare in self.spares if spare.pid in gone]:
            spare.line.close()
            self.spares.remove(spare)
            self.wanted = 0  # until the next call: the next spare might end, too
        for process in ended:
            del self.processes[process.pid]
            for cluster in self.clusters:
                if process.pid in cluster.rank_of:
                    rank = cluster.rank_of.pop(process.pid)
                    cluster.tell(rank=rank, status=process.exitcode)
        self.orphans.end(self.processes, ended)
        for process in ended:
            process.close()
        self.clusters = [c for c in self.clusters if c.socket or c.rank_of]
        if self.give_way and len(self.processes) == len(self.spares):
            self.give_way.busy(0)


def main(early, late, notebook_pid, start):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook decides what an interrupt means
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    early, late = socket.socket(fileno=int(early)), socket.socket(fileno=int(late))
    pid = int(notebook_pid)
    notebook = (pid, getattr(os, "pidfd_open", lambda pid: None)(pid))
    if sys.platform == "linux" and network.possible():  # before PyTorch, while a fork is small
        os.environ[network.POSSIBLE] = "1"
    bytecode.use()
    gc.disable()  # imports leave little garbage, and a look at all their objects takes long
    import_first()
    leave_standing()
    elder = None
    if start == "spawn":  # its ranks inherit no import, so there is nothing more to prepare
        early.close()
    else:
        gc.freeze()  # otherwise the ranks' collectors would write to every shared page, and copy it
        give_way = GiveWay()
        if (elder := os.fork()) == 0:
            late.close()
            gc.enable()
            Server(early, notebook, give_way, wanted=FIRST_SPARES).serve()
            os._exit(0)
        early.close()
        with give_way:
            import_rest()
        leave_standing()
        gc.collect()
        gc.freeze()
    gc.enable()
    with contextlib.suppress(OSError):  # the notebook is gone already: still clean up
        late.sendall(b"ready\n")
    Server(late, notebook, elder=elder).serve()
    os._exit(0)  # multiprocessing's own end of a process would wait for ranks

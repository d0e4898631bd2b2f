"""The clean process that ranks come from.

A rank is a fresh process, yet `import torch` costs seconds. So one process per notebook imports
torch once, and forks itself for every rank: a fork shares those pages and costs milliseconds. It
holds nothing of the notebook's, starts no thread, and never touches CUDA, so that forking it is
always safe (a notebook's own process is safe to fork only until it first uses CUDA).

Two generations serve, so that the first call need not wait for everything:

    server ── import torch ──┬── import what a training step needs ── serve `late` ──…
                             └── fork: serve `early` at once, until `late` is ready

The file is a program of its own and imports nothing of `helpers`: whatever a rank imports from
there is read from disk by that rank, as it stands at that moment.

Wire: over `early` and `late` come sockets, one per cluster, and lines: `folder PATH` (remove it at
the end), `retire` (end once the last rank has), `end`. Over a cluster's socket go lines of JSON:
`{"start": rank}` (with the rank's four file descriptors), `{"signal": [ranks, number]}`,
`{"release": seconds}` (let the ranks end by themselves, then kill); back come `{"rank", "pid"}`
and `{"rank", "status"}`. A closed cluster socket means: kill these ranks.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
from dataclasses import dataclass, field

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
START_FAILED = 70  # exit code of a rank that never came to the function; failure.py has it too
FDS_PER_RANK = 4  # channel, stdout, stderr, stacks
PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5  # how often deadlines are looked at


def import_first():
    """What every rank needs before its first collective."""
    import cloudpickle  # noqa: F401
    import numpy  # noqa: F401
    import torch.distributed  # noqa: F401


def import_rest():
    """What a training step pulls in; the first optimizer of a process alone imports for 1-2 s."""
    import torch
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel
    import torch.utils.data

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)  # no backward: autograd's threads would make forking unsafe
    torch.optim.AdamW([weight]).step()


@dataclass
class Ranks:
    """The ranks of one cluster, and the socket of the notebook that they belong to."""

    socket: socket.socket
    rank_of: dict[int, int] = field(default_factory=dict)  # pid -> rank
    text: bytes = b""
    fds: list[int] = field(default_factory=list)
    deadline: float | None = None  # when to kill what was told to end by itself

    def tell(self, **message):
        try:
            if self.socket:
                self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # the notebook has hung up; its ranks are killed when the loop sees that
            pass

    def signal(self, ranks, number):
        for pid, rank in self.rank_of.items():
            if rank in ranks:
                os.kill(pid, number)

    def kill(self):
        for pid in self.rank_of:
            kill_group(pid)
            os.kill(pid, signal.SIGKILL)  # it may not lead its group yet


def kill_group(pid):
    """Kill a rank and whatever it started: each rank leads a session of its own."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


class Server:
    def __init__(self, control, notebook, fork):
        self.control, self.fork = control, fork
        self.notebook = notebook  # its pid, and a pidfd where the system has them
        self.text, self.ending = b"", False
        self.clusters: list[Ranks] = []
        self.folders: set[str] = set()  # what the notebook would like removed at its end
        self.programs: dict[int, subprocess.Popen] = {}  # held, or Popen would wait for them itself
        self.wake = os.pipe()  # a signal writes to it, and so ends the select
        for end in self.wake:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self):
        """Until the notebook says so, hangs up, or is gone."""
        while (self.control or self.clusters) and not self.ending:
            sockets = [self.control, self.notebook[1], *(c.socket for c in self.clusters)]
            ready, _, _ = select.select(
                [self.wake[0], *filter(None, sockets)], [], [], POLL_SECONDS
            )
            if self.wake[0] in ready:
                os.read(self.wake[0], 65536)
            for cluster in [c for c in self.clusters if c.socket in ready]:
                self.hear(cluster)
            if self.control in ready:
                self.accept()
            self.reap()
            for cluster in self.clusters:
                if cluster.deadline and time.monotonic() > cluster.deadline:
                    cluster.kill()
            self.ending |= not self.notebook_lives()
        for cluster in self.clusters:
            cluster.kill()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def notebook_lives(self):
        """Asked beside waiting for its sockets to close: a fork of it may hold them open."""
        pid, pidfd = self.notebook
        if pidfd is not None:  # tells of the end even before someone has waited for the process
            return not select.select([pidfd], [], [], 0)[0]
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def accept(self):
        text, fds, _, _ = socket.recv_fds(self.control, 4096, 1)
        for fd in fds:
            self.clusters.append(Ranks(socket.socket(fileno=fd)))
        *lines, self.text = (self.text + text).split(b"\n")
        for line in lines:
            match line.decode().split(" ", 1):
                case ["folder", path]:
                    self.folders.add(path)
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
                case {"start": rank}:
                    fds, cluster.fds = cluster.fds[:FDS_PER_RANK], cluster.fds[FDS_PER_RANK:]
                    try:
                        pid = self.start(fds)
                    except OSError as error:  # no memory, or too many processes
                        cluster.tell(rank=rank, status=START_FAILED, problem=str(error))
                        continue
                    cluster.rank_of[pid] = rank
                    cluster.tell(rank=rank, pid=pid)
                case {"signal": [ranks, number]}:
                    cluster.signal(ranks, number)
                case {"release": seconds}:
                    cluster.deadline = time.monotonic() + seconds

    def start(self, fds):
        try:
            if not self.fork:
                program = spawn_rank(fds)
                self.programs[program.pid] = program
                return program.pid
            if (pid := os.fork()) == 0:
                self.leave()
                become_rank(*fds)
            return pid
        finally:
            for fd in fds:
                os.close(fd)

    def leave(self):
        """In the forked rank: let go of what is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for kept in filter(None, [self.control, *(c.socket for c in self.clusters)]):
            kept.close()
        waiting = [fd for cluster in self.clusters for fd in cluster.fds]
        for fd in filter(None, [*self.wake, self.notebook[1], *waiting]):
            os.close(fd)

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.programs.pop(pid, None)
            for cluster in self.clusters:
                if pid in cluster.rank_of:
                    kill_group(pid)  # what the rank started, and did not end
                    rank = cluster.rank_of.pop(pid)
                    cluster.tell(rank=rank, status=os.waitstatus_to_exitcode(status))
        self.clusters = [c for c in self.clusters if c.socket or c.rank_of]


def become_rank(channel, stdout, stderr, stacks):
    """Turn this fresh fork into a rank; never returns."""
    code = START_FAILED
    try:
        server = os.getppid()
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
        for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, target)
            os.close(fd)
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.path.insert(0, ROOT)
        from helpers.runtime.local.rank import work

        code = work(channel, stacks)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(code)


def spawn_rank(fds):
    """Start a rank as a new program, where forking a process with torch in it is not safe."""
    channel, stdout, stderr, stacks = fds
    program = "import sys; sys.path.insert(0, sys.argv[1]); "
    program += "from helpers.runtime.local.rank import work; "
    program += "sys.exit(work(*map(int, sys.argv[2:])))"
    return subprocess.Popen(
        [sys.executable, "-c", program, ROOT, str(channel), str(stacks)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=(channel, stacks),
        start_new_session=True,
    )


def main(early, late, notebook_pid, start):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook decides what an interrupt means
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a rank may be asked before it listens
    early, late = socket.socket(fileno=int(early)), socket.socket(fileno=int(late))
    pid, fork = int(notebook_pid), start == "fork"
    notebook = (pid, getattr(os, "pidfd_open", lambda pid: None)(pid))
    if not fork:
        early.close()
    else:
        import_first()
        gc.collect()
        gc.freeze()  # else the ranks' collectors would write to, and so copy, every shared page
        if os.fork() == 0:
            late.close()
            Server(early, notebook, fork).serve()
            os._exit(0)
        early.close()
        import_rest()
        gc.collect()
        gc.freeze()
    with contextlib.suppress(OSError):  # the notebook is gone already: see to what it left
        late.sendall(b"ready\n")
    Server(late, notebook, fork).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

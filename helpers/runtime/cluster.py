"""Ranks that live on from call to call; `launch` is a cluster of one call."""

import inspect
import itertools
import linecache
import os
import sys
import threading
import time
from types import SimpleNamespace

from helpers.runtime.blame import pack_or_name
from helpers.runtime.devices import choose_device, cores
from helpers.runtime.failure import ServerLost, WorkerError
from helpers.runtime.joined import member
from helpers.runtime.launcher import INSIDE, mark
from helpers.runtime.local import kept, session
from helpers.runtime.local.call import Call
from helpers.runtime.local.interrupt import Interrupts
from helpers.runtime.local.processes import Processes
from helpers.runtime.local.rank import Setup
from helpers.runtime.payload import Parcel
from helpers.runtime.private import anonymous_file, private_folder
from helpers.runtime.runs import Runs
from helpers.runtime.screen import Screen

DEFAULT_TIMEOUT = 120.0  # seconds
END_SECONDS = 3.0  # what stopped ranks may take to be gone


class Cluster:
    """`workers` ranks with a process group, alive until `close` or the end of the notebook.

    Their `worker.state`, and whatever CUDA context or communicator they hold, lives on between
    calls. After a call that failed or was interrupted, the next one begins with new ranks.

        with Cluster(workers=4) as cluster:
            cluster.run(build)
            cluster.run(train, steps=10)

    Args:
        workers: how many ranks.
        device: "cpu" or "cuda"; by default CUDA where there is a GPU for each rank.
        timeout: seconds without a sign of life after which a call counts as hanging; None: never.
        debug: PyTorch compares the ranks' collectives and names those that differ; NCCL logs.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        device: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        debug: bool = False,
    ):
        if not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers must be a positive whole number, not {workers!r}")
        self.member = member.here(debug)  # under torchrun and its like: a rank already
        if self.member:
            self.device, self.backend = self.member.choose(workers, device)
            workers, self.state = self.member.world_size, SimpleNamespace()
        else:
            self.device, self.backend = choose_device(workers, device)
        self.workers = workers
        self.timeout, self.debug = timeout, debug
        self.processes: Processes | None = None
        self.calls = 0  # that these ranks have answered
        self.lock = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(self, fn, /, *, live: str | None = None, timeout=..., **kwargs) -> Runs:
        """Call `fn(worker, **kwargs)` on every rank and return what each returned.

        Args:
            live: draw this logged value as it comes.
            timeout: for this call; by default the cluster's.

        Raises:
            TypeError: `fn` does not take these arguments.
            CannotTravel: `fn` or an argument cannot be sent; names the variable.
            WorkerError: a rank failed, died or hangs.
        """
        __tracebackhide__ = True
        if not callable(fn):
            raise TypeError(f"run takes a function of a worker, not a {type(fn).__name__}")
        check_call(fn, kwargs)
        timeout = self.timeout if timeout is ... else timeout
        with self.lock:
            if self.member:
                place = {"device": self.device, "backend": self.backend, "state": self.state}
                return self.member.run(fn, kwargs, live=live, timeout=timeout, **place)
            return self.call(fn, kwargs, live, timeout)

    def call(self, fn, kwargs, live, timeout) -> Runs:
        __tracebackhide__ = True
        began = time.perf_counter()
        names = {getattr(fn, "__name__", "the function"): fn, **kwargs}
        parcel = pack_or_name((fn, kwargs, cell_sources()), names, "to the ranks")
        with Interrupts() as interrupts:
            try:
                kept.drop(wait=END_SECONDS)
                call = self.send(parcel, live)
                try:
                    with interrupts.allowed():
                        call.wait(timeout)
                finally:
                    call.close()
            except BaseException as error:
                self.stop(error)
                if self.calls:
                    explain_loss(error)
                self.calls = 0
                raise
            finally:
                parcel.close()
            self.calls += 1
        results = [call.results[rank] for rank in range(self.workers)]
        seconds = time.perf_counter() - began
        return Runs(results, call.records, self.device, self.backend, seconds)

    def send(self, parcel: Parcel, live: str | None) -> Call:
        """Put the call before the ranks, which are started if there are none."""
        if self.processes is None or self.processes.pid != os.getpid():  # a fork has no ranks yet
            self.start()
            for process in self.processes.ranks:
                process.listen()
        for process in self.processes.ranks:
            try:
                process.channel.send("call", parcel.pickled, parcel.sizes, fd=parcel.fd)
            except OSError:
                pass  # it has ended since, and the server will say how
        return Call(self.processes, Screen(live))

    def start(self):
        try:
            self.processes = Processes(self.workers)
        except ServerLost:  # it was killed since the last call, or just now: there is another
            self.processes = Processes(self.workers)
        path, fd = None, None
        if os.path.isdir("/proc/self/fd"):
            fd = anonymous_file()  # the ranks meet in a file that has no name
        else:
            path = str(private_folder() / f"rendezvous-{next(_count)}")
        for process in self.processes.ranks:
            process.channel.send(self.setup(process.rank, path), fd=fd)
        if fd is not None:
            os.close(fd)

    def setup(self, rank: int, rendezvous: str | None) -> Setup:
        loopback = "lo" if sys.platform == "linux" else "lo0"
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self.workers,
            INSIDE: mark(),
            "LOCAL_WORLD_SIZE": self.workers,
            "GLOO_SOCKET_IFNAME": loopback,
            "NCCL_SOCKET_IFNAME": loopback,
        }
        return Setup(
            rank=rank,
            world_size=self.workers,
            device=self.device,
            backend=self.backend,
            threads=max(1, cores() // self.workers),
            timeout=max(1800.0, 2 * (self.timeout or 0)),
            rendezvous=rendezvous,
            path=list(sys.path),
            folder=working_folder(),
            environ={**os.environ, **{name: str(value) for name, value in place.items()}},
            debug=self.debug,
        )

    def stop(self, error: BaseException):
        """Kill the ranks and wait until they are gone; or keep them for a debugger."""
        processes, self.processes = self.processes, None
        if processes and kept.keep(processes, error):
            session.offer(error)
        elif processes:
            processes.kill(wait=END_SECONDS)

    def close(self):
        """Let the ranks leave. On a GPU, wait until they have given back its memory."""
        with self.lock, Interrupts():
            processes, self.processes = self.processes, None
            self.calls = 0
            if processes:
                processes.leave(wait=END_SECONDS if self.device == "cuda" else 0)


_count = itertools.count()


def check_call(fn, kwargs):
    """Say here, and not on every rank, that `fn(worker, **kwargs)` is no possible call.

    Raises:
        TypeError: an argument is missing, unknown, or given twice.
    """
    __tracebackhide__ = True
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # written in C, say
        return
    try:
        signature.bind("worker", **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", "the function")
        given = ", ".join(["worker", *(f"{key}=…" for key in kwargs)])
        hint = "; the number of ranks is `workers=`" if "worker" in kwargs else ""
        raise TypeError(
            f"{name}{signature} cannot be called as {name}({given}): {error}{hint}"
        ) from None


def working_folder() -> str | None:
    """Where the notebook is. A deleted folder has no name any more, but a way to it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return f"/proc/{os.getpid()}/cwd" if os.path.isdir("/proc/self/fd") else None


def cell_sources() -> dict[str, str]:
    """The text of every cell that ran, by the name of the file that it pretends to be."""
    return {
        name: "".join(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and not os.path.exists(name)
    }


def explain_loss(error: BaseException):
    """Say in the error that what earlier calls left on the ranks is gone with them."""
    text = "The next call begins with new ranks: what worker.state held is lost."
    if isinstance(error, WorkerError):
        error.args = (f"{error}\n{text}",)
    elif isinstance(error, KeyboardInterrupt):
        print(f"Interrupted. {text}")

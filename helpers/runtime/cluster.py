"""Ranks that live across calls; `launch` is a cluster for one call."""

import inspect
import os
import threading
import time
from types import SimpleNamespace

from helpers.runtime.devices import choose_device
from helpers.runtime.failure import CannotStart, WorkerError
from helpers.runtime.joined import member
from helpers.runtime.local import session
from helpers.runtime.local.call import Call
from helpers.runtime.local.forkserver.client import start_method
from helpers.runtime.local.forkserver.processes import RELEASE_SECONDS, Processes
from helpers.runtime.local.interrupt import Interrupts
from helpers.runtime.local.sources import HERE
from helpers.runtime.local.start import start_ranks
from helpers.runtime.payload import Parcel
from helpers.runtime.proof import Stranger
from helpers.runtime.report import pack_or_name
from helpers.runtime.runs import Runs
from helpers.runtime.screen import Screen, say
from helpers.runtime.stacks import cell_sources

DEFAULT_TIMEOUT = 120.0  # seconds
END_SECONDS = 3.0  # until stopped ranks must be gone
TRIES = 3  # to meet, where another user of this machine can connect in place of a rank
OF_RANKS = (
    "these ranks",
    "they still use the old version. close() the Cluster, and its next call reads the new.",
)
OF_THIS_PROCESS = (
    "this process",
    "new ranks read the new version, this process keeps the old one. Restart the kernel.",
)


class Cluster:
    """`workers` ranks with a process group, alive until `close` or the end of the notebook.

    Their `worker.state`, CUDA contexts and communicators live on between calls. If a call fails or
    is interrupted, the next call starts new ranks.

        with Cluster(workers=4) as cluster:
            cluster.run(build)
            cluster.run(train, steps=10)

    Args:
        workers: the number of ranks.
        device: "cpu" or "cuda"; by default CUDA if there is a GPU for each rank.
        timeout: seconds without a sign of life until a call counts as hanging; None: never.
        debug: PyTorch compares the ranks' collectives and names those that differ; NCCL logs.
        compare: name both sides at once if the ranks' calls do not belong together, for example
            if their sizes differ. With NCCL only if `debug` is set. False: as on a cluster.
        start: "fork" or "spawn", torch.multiprocessing's ways to start a process. By default the
            ranks are forks of a clean process that has imported PyTorch, where forking is safe.
        first_gpu: the GPU of rank 0; rank r has the r-th GPU after it.
        network: let the ranks use this machine's network, for example to download. By default the
            ranks have a network of their own where the system allows one, and nobody else
            reaches them.

    Raises:
        ValueError, TypeError: a value without meaning; or fewer GPUs than ranks on "cuda".
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        device: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        debug: bool = False,
        compare: bool = True,
        start: str | None = None,
        first_gpu: int = 0,
        network: bool = False,
    ):
        check_timeout(timeout)
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise ValueError(f"workers must be a positive whole number, not {workers!r}")
        self.member = member.here(debug)  # under torchrun, for example, this process is a rank
        if self.member:
            self.device, self.backend = self.member.choose(workers, device)
            workers, self.state = self.member.world_size, SimpleNamespace()
        else:
            self.device, self.backend = choose_device(workers, device, first_gpu)
        self.method, self.first_gpu = choose_start(start), first_gpu
        self.workers, self.network = workers, network
        self.timeout, self.debug, self.compare = timeout, debug, compare
        self.processes: Processes | None = None
        self.calls = 0  # calls that these ranks have answered
        self.environ: dict[str, str] = {}  # the variables that these ranks know
        self.lock = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(self, fn, /, *, live: str | None = None, timeout=..., **kwargs) -> Runs:
        """Call `fn(worker, **kwargs)` on every rank and return the results of all ranks.

        Args:
            live: draw this logged value during the call.
            timeout: for this call; by default the cluster's.

        Raises:
            TypeError: `fn` does not accept these arguments, or `live` is no name.
            CannotTravel: `fn` or an argument cannot be sent; names the variable.
            WorkerError: a rank failed, died or hangs.
        """
        __tracebackhide__ = True
        check_call(fn, kwargs)
        if not isinstance(live, str | None):
            raise TypeError(
                f"live is the name of a logged value, such as 'loss', or None, not {live!r}"
            )
        timeout = self.timeout if timeout is ... else timeout
        check_timeout(timeout)
        with self.lock:
            if self.member:
                place = {"device": self.device, "backend": self.backend, "state": self.state}
                return self.member.run(fn, kwargs, live=live, timeout=timeout, **place)
            return self.call(fn, kwargs, live, timeout)

    def call(self, fn, kwargs, live, timeout) -> Runs:
        __tracebackhide__ = True
        began = time.perf_counter()
        with Interrupts() as interrupts:
            HERE.look()
            tell_changed(HERE.changed(), *OF_THIS_PROCESS)
            names = {getattr(fn, "__name__", "the function"): fn, **kwargs}
            parcel = pack_or_name((fn, kwargs, cell_sources()), names, "to the ranks")
            try:
                session.drop(wait=END_SECONDS)
                call = self.meet_and_run(parcel, live, timeout, interrupts)
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
        return Runs(results, call.rows.kept, self.device, self.backend, seconds)

    def meet_and_run(self, parcel: Parcel, live, timeout, interrupts: Interrupts) -> Call:
        """Return the call, answered. New ranks meet if a stranger answers before the function."""
        __tracebackhide__ = True
        for left in reversed(range(TRIES)):
            try:
                call = self.send(parcel, live)
            except OSError as error:  # too few descriptors, for example
                raise CannotStart(str(error)) from None
            try:
                with interrupts.allowed():
                    call.wait(timeout)
                return call
            except WorkerError as error:
                met = any(process.joined for process in self.processes.ranks)
                if met or not left or not isinstance(error.__cause__, Stranger):
                    raise
                reason = error.__cause__
            finally:
                call.close()
                tell_changed(call.changed, *OF_RANKS)
            say(f"launch: {reason}: the ranks meet once more, at other ports")
            processes, self.processes = self.processes, None
            processes.kill(wait=END_SECONDS)

    def send(self, parcel: Parcel, live: str | None) -> Call:
        """Send the call to the ranks; start the ranks if there are none."""
        if self.processes is None or self.processes.pid != os.getpid():  # a fork has no ranks yet
            self.start()
            for process in self.processes.ranks:
                process.listen()
        changes, self.environ = environ_changes(self.environ), dict(os.environ)
        for process in self.processes.ranks:
            if changes:
                process.send("environ", changes)
            process.send("call", parcel.pickled, parcel.sizes, fd=parcel.fd)
        return Call(self.processes, Screen(live))

    def start(self):
        self.environ = dict(os.environ)
        self.processes = start_ranks(
            self.workers,
            device=self.device,
            backend=self.backend,
            method=self.method,
            timeout=self.timeout,
            first_gpu=self.first_gpu,
            debug=self.debug,
            compare=self.compare,
            network=self.network,
        )

    def stop(self, error: BaseException):
        """Kill the ranks and wait for their end; or keep the ranks for a debugger."""
        processes, self.processes = self.processes, None
        if processes and not session.keep(processes, error):
            processes.kill(wait=END_SECONDS)
            processes.prepare_next()

    def close(self):
        """Let the ranks leave.

        The method waits for their end where the end has effects: ranks on a GPU free its memory,
        and the exit functions and threads of a call may print or write files.
        """
        with self.lock, Interrupts() as interrupts:
            processes, self.processes = self.processes, None
            self.calls = 0
            if processes is None:
                return
            try:
                processes.leave()
                processes.prepare_next()
                if processes.later and processes.pid == os.getpid():
                    with interrupts.allowed():
                        show_farewell(processes)
                elif self.device == "cuda":
                    processes.wait(RELEASE_SECONDS + END_SECONDS)
            finally:
                processes.close()


def show_farewell(processes: Processes):
    """Show the output of ranks that leave."""
    call = Call(processes, Screen())
    try:
        call.farewell(RELEASE_SECONDS)
    finally:
        call.close()


def tell_changed(files, whose: str, what_to_do: str):
    """Print that processes still use modules as they were before their files changed."""
    if files:
        names = ", ".join(os.path.relpath(file) for file in files)
        them = "it" if len(files) == 1 else "them"
        say(f"{names} changed since {whose} imported {them}: {what_to_do}")


def environ_changes(before: dict[str, str]) -> dict[str, str | None]:
    """Return the variables that ranks must set, or remove (None), to match this process."""
    changes = {name: value for name, value in os.environ.items() if before.get(name) != value}
    return {**changes, **dict.fromkeys(before.keys() - os.environ.keys())}


def check_timeout(timeout):
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is a number of seconds, or None for no limit, not {timeout!r}")
    if not 0 < timeout < float("inf"):
        raise ValueError(
            f"timeout must be positive and finite, or None for no limit, not {timeout!r}"
        )


def choose_start(start: str | None) -> str:
    """Return the start method. Raises ValueError: no such method, or not on this system."""
    default = start_method()
    if start not in (None, "fork", "spawn"):
        raise ValueError(f'start is "fork", "spawn" or None, not {start!r}')
    if start == "fork" and default == "spawn":
        raise ValueError(
            'start="fork" is not safe here, because this process has loaded PyTorch: use "spawn"'
        )
    return start or default


def check_call(fn, kwargs):
    """Check here, and not on every rank, that `fn(worker, **kwargs)` is a possible call.

    Raises:
        TypeError: `fn` is no function; or an argument is missing, unknown, or given twice.
    """
    __tracebackhide__ = True
    if not callable(fn):
        raise TypeError(f"give a function of a worker, not a {type(fn).__name__}")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a function written in C, for example
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


def explain_loss(error: BaseException):
    """Add to the error that the results of earlier calls on the ranks are lost."""
    text = "The next call starts new ranks: the contents of worker.state are lost."
    if isinstance(error, WorkerError):
        error.args = (f"{error}\n{text}",)
    elif isinstance(error, KeyboardInterrupt):
        say(f"Interrupted. {text}")

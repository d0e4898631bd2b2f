"""The program of a rank: join the others, then run calls, one after another, until it leaves."""

import faulthandler
import gc
import linecache
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from helpers.runtime import proof
from helpers.runtime.local import network
from helpers.runtime.local.channel import Channel
from helpers.runtime.local.rank import compared, ending, listener
from helpers.runtime.local.sources import SourceFiles
from helpers.runtime.payload import CannotTravel, Parcel, unpack
from helpers.runtime.report import describe, pack_or_name
from helpers.runtime.worker import DEBUG, Worker, seed_differently

STACK_SIGNAL = signal.SIGUSR1
POLL_SECONDS = 0.002
CHANNEL_LOST = 71  # exit code of a rank that cannot answer any more; failure.py has it too


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a rank needs to know before it can join."""

    rank: int
    world_size: int
    device: str  # "cpu" or "cuda"
    gpu: int  # the index of its GPU, if the device is "cuda"
    backend: str
    threads: int
    timeout: float  # seconds after which the backend itself ends a collective
    rendezvous: str | None  # path; None: the file whose descriptor came with this message
    path: list[str]  # sys.path of the notebook
    folder: str | None  # the notebook's working folder; None if that is gone
    environ: dict[str, str]  # the notebook's
    own: dict[str, str]  # this rank's own variables, which replace the notebook's
    key: bytes  # the ranks prove themselves to each other with it
    debug: bool = False


def work(channel: Channel, stacks_fd: int) -> int:
    """Run a rank from its first message to its last; return its exit code."""
    faulthandler.enable(stacks_fd)  # a crash in C leaves the Python stack
    faulthandler.register(STACK_SIGNAL, stacks_fd, all_threads=False)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):  # a fork's own have other numbers
        mode = "w" if fd else "r"
        stream = os.fdopen(fd, mode, 1, "utf-8", "backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    (setup,), rendezvous = channel.receive()
    ending.begin()
    worker, files, notes = None, SourceFiles(), None
    while True:
        try:
            message, fd = channel.receive()
        except EOFError:  # the notebook is gone
            return 1
        match message:
            case ("environ", changes):
                set_environ({**changes, **setup.own})
            case ("call", pickled, sizes):
                call = Parcel(pickled, sizes, fd)
                try:
                    if worker is None:
                        worker = answer(channel, partial(join, setup, rendezvous, channel))
                        if worker is not None and notes is not None:
                            compared.compare(notes)
                    if worker is not None:
                        if changed := files.changed():
                            channel.post("changed", changed)
                        answer(channel, partial(run, worker, call, files))
                except OSError:
                    return CHANNEL_LOST
                finally:
                    call.close()
            case ("notes",):  # the descriptor of a memory that all ranks share
                notes = fd
            case ("listen",):
                listener.listen(fd)
            case ("leave",):
                leave(setup)
                ending.finish()
                return 0


def join(setup: Setup, rendezvous: int | None, channel: Channel) -> Worker:
    """Become rank `setup.rank` of the process group."""
    os.environ.clear()
    os.environ.update(setup.environ)
    os.environ.update(setup.own)
    if setup.debug:
        os.environ.update(DEBUG)
        dist.set_debug_level_from_env()  # torch read the variable when it was imported
    sys.path[:] = setup.path
    if setup.folder is not None:
        os.chdir(setup.folder)
    torch.set_num_threads(setup.threads)
    device = torch.device("cpu")
    if setup.device == "cuda":
        device = torch.device("cuda", setup.gpu)
        torch.cuda.set_device(device)
    seed_differently(device)
    path = setup.rendezvous or f"/proc/self/fd/{rendezvous}"
    store = dist.FileStore(path, setup.world_size)
    if not network.own():
        wait_for_all(store, setup, "come")
    dist.init_process_group(
        setup.backend,
        store=store,
        rank=setup.rank,
        world_size=setup.world_size,
        timeout=timedelta(seconds=setup.timeout),
        device_id=device if setup.device == "cuda" else None,
    )
    if network.own():  # no stranger can answer
        # A function that destroys the group at once would break what others still connect. A
        # barrier would do, but it counts as a collective of the function's.
        wait_for_all(store, setup, "connected")
    else:
        proof.keep(setup.key)
        proof.prove()
        proof.prove()  # a barrier: no rank runs the function before all pairs are proved
    channel.post("joined")
    listener.joined()
    return Worker(setup.rank, setup.world_size, device, channel)


def wait_for_all(store: dist.Store, setup: Setup, what: str):
    """Return once all ranks have said this: that they come, or that they are connected.

    Ranks come up to half a second apart, and then connect within milliseconds. A rank that listened
    before would leave that half second to a stranger.
    """
    store.set(f"{what}/{setup.rank}", "")
    everyone = [f"{what}/{rank}" for rank in range(setup.world_size)]
    while not store.check(everyone):
        time.sleep(POLL_SECONDS)


def set_environ(changes: dict[str, str | None]):
    """Apply changes in the notebook's variables since the last call; None removes a variable."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def run(worker: Worker, call: Parcel, files: SourceFiles):
    fn, kwargs, sources = unpack(call)
    for name, source in sources.items():  # so that tracebacks, and inspect, can show a cell
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    worker._began = time.perf_counter()
    rank = os.getpid()
    result = fn(worker, **kwargs)
    if os.getpid() != rank:
        return None  # see answer()
    try:
        parcel = pack_or_name(result, {"result": result}, "back to the notebook")
    except CannotTravel as error:
        raise error.with_traceback(None) from None
    flush()
    files.look()  # before the answer: after it, the reader may edit them
    if ending.something_left():
        worker._channel.post("later")
    worker._channel.send("result", parcel.pickled, parcel.sizes, fd=parcel.fd)
    parcel.close()
    return worker


def answer(channel: Channel, step):
    """Return `step()`, or None after reporting its failure to the notebook."""
    rank = os.getpid()
    try:
        return step()
    except BaseException as error:
        if os.getpid() == rank:
            listener.remember(error)
            flush()
            hint = network.hint(error)
            channel.send("error", {**describe(error, skip=__file__), "hint": hint})
        return None
    finally:
        if os.getpid() != rank:  # a fork that the function made, and that has left the function
            flush()
            os._exit(0)


def flush():
    """Write out prints and files before the answer."""
    ending.write_files()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the function closed it
            pass


def leave(setup: Setup):
    """End the processes that this rank started (a DataLoader's workers, for example), then go."""
    for child in multiprocessing.active_children():
        child.terminate()
        child.join(timeout=1)
    if setup.device == "cuda" and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()  # NCCL needs it; with gloo, the process's end is faster

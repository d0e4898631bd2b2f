"""This process as a rank of torchrun, `accelerate launch`, srun or mpiexec."""

import atexit
import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from helpers.runtime.devices import GPUs, cores
from helpers.runtime.failure import Failure, WorkerError
from helpers.runtime.joined.heartbeat import OK, Watch
from helpers.runtime.joined.rendezvous import choose_interfaces, meet, share_key
from helpers.runtime.launcher import INSIDE, Place, place
from helpers.runtime.payload import unpack
from helpers.runtime.plain import decode, encode, everyones
from helpers.runtime.proof import keep, prove
from helpers.runtime.report import describe, pack_or_name
from helpers.runtime.runs import Rows, Runs
from helpers.runtime.screen import Screen, say
from helpers.runtime.worker import DEBUG, Worker, seed_differently

MEET_SECONDS = 600.0  # machines of a job may start minutes apart
COLLECTIVE_SECONDS = 1800.0  # PyTorch's own default
COMPLAINT_SECONDS = 1.0  # after a complaint that another rank's end may have caused
FAREWELL_SECONDS = 5.0

_member = None


def here(debug: bool = False):
    """Return this process's own rank, joined to the others; None if `launch` must start ranks.

    It is also None inside a function that runs on such a rank: a nested `launch` starts its own.

    Raises:
        RuntimeError: the ranks did not meet.
    """
    global _member
    if _member is not None and _member.pid == os.getpid():
        return None if _member.running else _member
    mine = place()
    if mine is not None:
        _member = Member(mine, debug)
        return _member
    return None


class Member:
    """A rank of a launcher, with a process group that lasts as long as the process.

    Attributes:
        device: "cpu" or "cuda", the same on all ranks.
        backend: "gloo", or gloo and NCCL.
        running: does a call run now?
    """

    def __init__(self, where: Place, debug: bool = False):
        self.pid, self.place = os.getpid(), where
        self.rank, self.world_size = where.rank, where.world_size
        self.running, self.failure, self.calls, self.told = False, "", 0, set()
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # Accelerate and others read these
        for name, value in zip(
            names, (where.rank, where.local_rank, where.world_size), strict=True
        ):
            os.environ[name] = str(value)
        os.environ[INSIDE] = where.start
        if debug:
            os.environ.update(DEBUG)
            dist.set_debug_level_from_env()
        choose_interfaces(where)
        self.store = meet(where, MEET_SECONDS)
        self.connections = [self.store, self.store.clone(), self.store.clone()]
        gpus = GPUs(where, self.store)
        self.device, self.backend, self.gpu = gpus.device, gpus.backend, gpus.index
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, cores() // gpus.local_size))
        if gpus.too_few:
            self.say(gpus.too_few)
        keep(share_key(where, self.store, MEET_SECONDS))
        self.group = self.form_group()
        atexit.register(self.leave)

    def form_group(self) -> dist.ProcessGroup:
        """Form the ranks' process group, unless the script has; return a group for our messages."""
        self.made_group = not dist.is_initialized()
        device_id = torch.device("cuda", self.gpu) if self.device == "cuda" else None
        if device_id is not None:  # with the script's group too: the function gets this device
            torch.cuda.set_device(device_id)
        if self.made_group:
            dist.init_process_group(
                self.backend,
                store=dist.PrefixStore("group", self.store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=COLLECTIVE_SECONDS),
                device_id=device_id,
            )
            prove()
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))
        prove(group)
        return group

    def say(self, text: str):
        """Print the text once, and on rank 0 only."""
        if self.rank == 0 and text not in self.told:
            self.told.add(text)
            say(f"launch: {text}")

    def choose(self, workers: int, device: str | None) -> tuple[str, str]:
        """Return `(device, backend)` of a call. The launcher sets the number of ranks."""
        n = self.world_size
        if workers != n:
            ranks = f"{n} rank{'s' * (n != 1)}"
            self.say(
                f"{workers} workers asked for, {ranks} started by {self.place.launcher}: {ranks}"
            )
        if device == "cuda" and self.device != "cuda":
            raise ValueError(
                f"{n} ranks need {n} GPUs, and there are fewer: "
                'start fewer ranks, or pass device="cpu"'
            )
        if device == "cpu":
            return "cpu", "gloo"
        return self.device, self.backend

    def run(self, fn, kwargs, *, device: str, backend: str, live, timeout, state) -> Runs:
        """Call `fn(worker, **kwargs)` here, as every other rank does, and gather all results.

        Function and arguments are copied, just as for ranks that `launch` itself starts.

        Raises:
            CannotTravel: as in `launch`; or the result is no plain data, see `plain`.
            WorkerError: some rank failed; every rank names the same one.
        """
        __tracebackhide__ = True
        if self.failure:
            raise RuntimeError(
                f"an earlier call failed, and the ranks with it ({self.failure}): "
                "start the script again"
            )
        began = time.perf_counter()
        names = {getattr(fn, "__name__", "the function"): fn, **kwargs}
        fn, kwargs = copied((fn, kwargs), names)
        screen = Screen(live) if self.rank == 0 else None
        notes = Notes(self.rank, screen)
        where = torch.device("cuda", self.gpu) if device == "cuda" else torch.device("cpu")
        worker = Worker(self.rank, self.world_size, where, notes)
        worker.local_rank, worker.state = self.place.local_rank, state
        self.calls += 1
        stores = [dist.PrefixStore(f"call{self.calls}", store) for store in self.connections]
        with Watch(stores, self.rank, self.world_size, timeout) as watch:
            packed = self.answer(worker, fn, kwargs, notes, watch)
            outcome = watch.wait()
            if screen:
                screen.finish()
            notes.rows.finish()
            if outcome != OK:
                self.fail(outcome)
            everything = [decode(each) for each in everyones(packed, self.group)]
        results = [result for result, _ in everything]
        records = [record for _, part in everything for record in part]
        records.sort(key=lambda record: record["seconds"])
        return Runs(results, records, device, backend, time.perf_counter() - began)

    def answer(self, worker: Worker, fn, kwargs, notes, watch: Watch) -> bytes | None:
        """Call `fn`; return its result and its log, packed, or None after reporting a failure."""
        self.running = True
        seed_differently(worker.device)
        try:
            result = fn(worker, **kwargs)
            packed = encode({"result": result, "the log": notes.records})
            watch.finished()
            return packed
        except BaseException as error:
            inner = error.__traceback__.tb_next
            failure = Failure(rank=self.rank, **describe(error.with_traceback(inner)))
            report = {"rank": self.rank, "kind": "exception", "headline": failure.headline()}
            if failure.consequence and not watch.decided.wait(COMPLAINT_SECONDS):
                what = "a rank ended without a report: killed, or out of memory?"
                report = {
                    "rank": None,
                    "kind": "died",
                    "headline": f"{what} ({failure.headline()})",
                }
            watch.failed({**report, "traceback": failure.traceback[-20_000:]})
            self.error = error
            if isinstance(error, KeyboardInterrupt):
                self.failure = failure.headline()
                raise
            return None
        finally:
            self.running = False
            sys.stdout.flush()

    def fail(self, report: dict):
        """Raise the same error on all ranks; on the culprit the error shows the traceback."""
        __tracebackhide__ = True
        self.failure = report["headline"]
        mine = report["rank"] == self.rank and report["kind"] == "exception"
        elsewhere = not mine and report["kind"] == "exception"
        error = WorkerError(
            report["headline"],
            kind=report["kind"],
            rank=report["rank"],
            traceback=report["traceback"] if mine else "",
            note="That rank has printed its traceback." if elsewhere else "",
        )
        error.traceback = report["traceback"]
        try:
            raise error from (self.error.with_traceback(None) if mine else None)
        except WorkerError:
            record_for_torchrun(error)
            raise

    def leave(self):
        """Leave at the end of the process. After a failure the ranks cannot agree any more."""
        if self.failure or self.pid != os.getpid():
            return
        absent = "has ended its script without this call: every rank makes the same calls"
        report = {"rank": self.rank, "kind": "died", "headline": f"rank {self.rank} {absent}"}
        try:  # rank 0 may serve the store, so it leaves last
            next_call = dist.PrefixStore(f"call{self.calls + 1}", self.store)
            next_call.compare_set("outcome", "", json.dumps({**report, "traceback": ""}))
            self.store.add("leaving", 1)
            until = time.monotonic() + FAREWELL_SECONDS
            while self.rank == 0 and self.store.add("leaving", 0) < self.world_size:
                if time.monotonic() > until:
                    break
                time.sleep(0.01)
        except RuntimeError:
            pass
        if self.made_group and dist.is_initialized():
            dist.destroy_process_group()


class Notes:
    """Collect the rows of `worker.log` and the bars of `worker.track`, and show them."""

    def __init__(self, rank: int, screen: Screen | None):
        self.rank, self.screen, self.rows = rank, screen, Rows()

    @property
    def records(self) -> list[dict]:
        return self.rows.kept

    def post(self, kind: str, *message):
        added = False
        if kind == "log":
            seconds, values = message
            added = self.rows.add({"rank": self.rank, **values, "seconds": seconds})
        if self.screen:
            if added:
                self.screen.point(self.records[-1])
            elif kind == "track":
                self.screen.progress(self.rank, *message)
            self.screen.draw()


def copied(value, names):
    """Return a copy of `value`, as another rank would receive it."""
    parcel = pack_or_name(value, names, "to the ranks")
    try:
        return unpack(parcel)
    finally:
        parcel.close()


def record_for_torchrun(error: BaseException):
    """Record the exception for torchrun's closing report."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)

"""A real kernel to do harm in, and a look at what is left behind afterwards."""

import contextlib
import os
import re
import secrets
import signal
import time
from collections import Counter
from pathlib import Path
from queue import Empty

import psutil
import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from helpers.runtime.local.forkserver.bootstrap import SPARE

ROOT = Path(__file__).resolve().parents[2]
MARK = "HELPERS_TEST_KERNEL"  # environment: whatever descends from a kernel carries it
FIRST_CELL = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
from helpers import launch, Cluster, WorkerError, CannotTravel

def sum_ranks(worker, x=0.0):
    t = torch.full((4,), x + worker.rank)
    dist.all_reduce(t)
    return t[0].item()

def other_function(worker):
    return worker.rank
"""
BUSY = """
def busy(worker):
    print("busy", flush=True)
    while True:
        time.sleep(0.01)
"""
SOON = 20.0  # seconds; far below the timeout of 120 s, far above what it takes
AGAIN = "assert list(launch(sum_ranks)) == [1.0, 1.0]"
SETTLE_SECONDS = 10.0  # for what was told to go; it takes milliseconds


class ThisInterpreter(KernelSpecManager):
    def get_kernel_spec(self, kernel_name):
        return KernelSpec(**get_kernel_dict())


class Output:
    """What a cell showed."""

    def __init__(self):
        self.stdout = self.stderr = ""
        self.displays: list[dict] = []
        self.error: str | None = None  # "ename: evalue"
        self.shown = ""  # the traceback as the notebook shows it

    def __repr__(self):
        return f"{self.stdout}\n{self.stderr}\n{self.error}\n{self.shown}"


class Kernel:
    """A kernel with `FIRST_CELL` run in it."""

    def __init__(self, folder: Path):
        self.token = secrets.token_hex(8)
        self.temp, self.folder = folder / "temp", folder / "work"
        self.temp.mkdir()
        self.folder.mkdir()
        self.manager = KernelManager(kernel_spec_manager=ThisInterpreter(), kernel_name="python3")
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temp),
            "IPYTHONDIR": str(folder / "ipython"),
            MARK: self.token,
        }
        self.manager.start_kernel(env=env, cwd=str(self.folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)
        self.pid = self.manager.provisioner.pid
        self.do(FIRST_CELL, seconds=120)  # it imports PyTorch, beside other tests

    def start(self, code: str) -> str:
        return self.client.execute(code)

    def result(self, ident: str, seconds: float = 60, until: str | None = None) -> Output:
        """Read until the cell ends, or until `until` was printed."""
        out, end = Output(), time.monotonic() + seconds
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.01, end - time.monotonic()))
            except Empty:
                raise AssertionError(f"no end after {seconds} s:\n{out}") from None
            if message["parent_header"].get("msg_id") != ident:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                text = getattr(out, content["name"]) + content["text"]
                setattr(out, content["name"], text)
                if until and until in text:
                    return out
            elif kind == "error":
                out.error = f"{content['ename']}: {content['evalue']}"
                out.shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
            elif kind in ("display_data", "update_display_data"):
                out.displays.append(content["data"])
            elif kind == "status" and content["execution_state"] == "idle":
                return out

    def run(self, code: str, seconds: float = 60) -> Output:
        return self.result(self.start(code), seconds)

    def do(self, code: str, seconds: float = 60) -> Output:
        """Run what must not fail."""
        out = self.run(code, seconds)
        assert out.error is None, out
        return out

    def interrupt(self):
        self.manager.provisioner.process.send_signal(signal.SIGINT)

    def settle(self):
        """Until the second generation serves, and the first has gone."""
        end = time.monotonic() + 120
        while True:
            self.do(AGAIN)
            soon = time.monotonic() + 2  # on a busy machine the call's ranks need a while to go
            while time.monotonic() < soon:
                if len(self.processes()) == 2 and len(self.processes(spares=True)) == 4:
                    return
                time.sleep(0.05)
            assert time.monotonic() < end, self.processes()

    def processes(self, spares: bool = False) -> list[psutil.Process]:
        """The kernel and whatever descends from it, orphans too; spares come and go."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(MARK) == self.token
                if ours and alive(process) and (spares or process.name() != SPARE):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                pass
        return found

    def children(self) -> list[psutil.Process]:
        return [p for p in self.processes() if p.pid != self.pid]

    def server(self) -> psutil.Process:
        end = time.monotonic() + SETTLE_SECONDS  # on a busy machine ranks need a while to go
        while len(children := self.children()) != 1 and time.monotonic() < end:
            time.sleep(0.05)
        (server,) = children
        return server

    def holdings(self) -> dict:
        """What a call must leave as it was."""
        processes = self.processes()
        return {
            "pids": {p.pid for p in processes},
            "processes": sorted(p.pid == self.pid for p in processes),
            "open": {p.pid == self.pid: open_files(p.pid) for p in processes},
            "threads": psutil.Process(self.pid).num_threads(),
            "temp": sorted(map(str, self.temp.rglob("*"))),
            "work": sorted(map(str, self.folder.rglob("*"))),
            "shm": sorted(p.name for p in Path("/dev/shm").iterdir()),
        }

    def shutdown(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def fail(kernel: Kernel, code: str) -> Output:
    """Run a cell that must end in an error, and not at a timeout."""
    began = time.monotonic()
    out = kernel.run(code)
    assert out.error is not None, out
    assert time.monotonic() - began < SOON
    return out


def start_busy(kernel: Kernel, call: str = "launch(busy, workers=3)") -> str:
    """Ranks at work, and the cell that they work for."""
    ident = kernel.start(BUSY + call)
    kernel.result(ident, until="busy")
    return ident


def alive(process: psutil.Process) -> bool:
    """Not even one that is dead and waits to be waited for."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_files(pid: int) -> Counter:
    """Open descriptors, by kind."""
    kinds: Counter = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds[re.sub(r"\d+", "", os.readlink(link))] += 1
        except FileNotFoundError:
            pass
    return kinds


def shared_by_others(ours: set[int]) -> set[str]:
    """Names in /dev/shm that other processes use: another worker of pytest, another program."""
    names = set()
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in ours:
            continue
        used = []
        with contextlib.suppress(OSError):  # it has ended, or it is another user's
            used = re.findall(r"/dev/shm/\S+", (process / "maps").read_text())
            for link in (process / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                    used.append(os.readlink(link))
        names.update(Path(path).name for path in used if path.startswith("/dev/shm/"))
    return names


def grown(before: dict, after: dict) -> dict:
    """What is more than before."""
    found = {name: after[name] for name in ("processes",) if after[name] != before[name]}
    if after["threads"] > before["threads"]:
        found["threads"] = after["threads"]
    for name in ("temp", "work", "shm"):
        more = set(after[name]) - set(before[name])
        if more and name == "shm":
            more -= shared_by_others(after["pids"])
        if more:
            found[name] = more
    for who, kinds in after["open"].items():
        held = before["open"].get(who, Counter())
        if not who:  # the server opens one for each wait
            held = held | Counter({"anon_inode:[eventpoll]": 1})
        if more := kinds - held:
            found["open in the kernel" if who else "open in the server"] = more
    return found


@pytest.fixture(scope="session")
def shared_kernel(tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    kernel.settle()
    # What a first error and a first drawing load is no leak.
    kernel.run("launch(lambda worker: 1 / 0)")
    kernel.run("launch(lambda worker: worker.log(x=1), live='x').frame()")
    kernel.settle()
    yield kernel
    kernel.shutdown()


@pytest.fixture
def kernel(shared_kernel):
    """The kernel of all tests. Afterwards the next call must work, and nothing may be left."""
    before = shared_kernel.holdings()
    yield shared_kernel
    shared_kernel.settle()
    end = time.monotonic() + SETTLE_SECONDS
    while left := grown(before, shared_kernel.holdings()):
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.1)


@pytest.fixture
def own_kernel(tmp_path):
    """A kernel that a test may end. Afterwards none of its processes may be left."""
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.shutdown()
    assert gone(lambda: kernel.processes(spares=True), SETTLE_SECONDS), kernel.processes()


def gone(processes, seconds: float) -> bool:
    """Does `processes()` become empty within so many seconds?"""
    end = time.monotonic() + seconds
    while processes():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True

"""Run cells in a real IPython kernel, as JupyterLab does, and return times, text and errors."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from queue import Empty

import psutil
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from helpers.runtime.local.forkserver.bootstrap import SPARE

ROOT = Path(__file__).resolve().parents[2]
MARK = "BENCH_KERNEL"  # environment variable that marks a kernel's descendants
NOTES = "BENCH_NOTES"  # environment variable: a folder for notes from ranks to the benchmark
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class ThisPython(KernelSpecManager):
    """Always run this interpreter, whichever kernel is named python3 on this machine."""

    def get_kernel_spec(self, kernel_name):
        return KernelSpec(**get_kernel_dict())


@dataclass
class Cell:
    """The result of one cell.

    Attributes:
        seconds: time of its code, measured in the kernel; None if it failed or did not end.
        text: everything that a user sees: prints, warnings, the traceback.
        error: the exception's name; "" for none; None if the cell did not end.
        ended: when the client learnt of the end, by `time.monotonic`, which all processes share.
    """

    seconds: float | None
    text: str
    error: str | None
    ended: float

    @property
    def ok(self) -> bool:
        return self.error == ""


class Kernel:
    """One fresh kernel, with a student's environment and one thread per process.

    Attributes:
        temporary: its own folder for temporary files, so that leftovers can be counted.
        notes: a folder that only the benchmark writes to.
    """

    def __init__(self, bytecode: bool = True):
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.temporary, self.notes = self.folder / "tmp", self.folder / "notes"
        self.temporary.mkdir()
        self.notes.mkdir()
        self.mark = uuid.uuid4().hex
        self.used = False  # for a benchmark that uses one kernel several times
        environ = {
            **os.environ,
            MARK: self.mark,
            NOTES: str(self.notes),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        }
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        if not bytecode:
            environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self.manager = KernelManager(
            kernel_spec_manager=ThisPython(),
            connection_file=str(self.folder / "kernel.json"),
            transport="ipc",
            ip=str(self.folder / "kernel"),
        )
        # The client gets the output; the kernel repeats some of it on the terminal.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.manager.start_kernel(env=environ, cwd=str(ROOT), **quiet)
        self.pid = self.manager.provisioner.process.pid
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(self, code: str, patience: float = 120.0) -> Cell:
        """Run a cell and wait for its end, at most `patience` seconds."""
        self.send(code)
        return self.listen(patience)

    def send(self, code: str):
        """Send a cell to the kernel; `listen` waits for its end."""
        self.sent = self.client.execute(timed(code), user_expressions={"seconds": "_seconds"})

    def time(self, code: str, patience: float = 120.0) -> float | None:
        """Run a cell and return its seconds; None if it hangs.

        Raises:
            RuntimeError: the cell failed. The message contains its output.
        """
        cell = self.run(code, patience)
        if cell.error:
            raise RuntimeError(f"{code}\n{cell.text}")
        return cell.seconds

    def listen(self, patience: float) -> Cell:
        """Collect the last cell's output until it ends, at most `patience` seconds."""
        until = time.monotonic() + patience
        reply = None
        while reply is None and time.monotonic() < until and self.manager.is_alive():
            reply = self.next(self.client.get_shell_msg, 0.1)
        ended = time.monotonic()
        text = []
        # Output uses another channel than the reply, and may arrive after it.
        while message := self.next(self.client.get_iopub_msg, 1.0 if reply else 0.1):
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    text.append(content["text"])
                case "error":
                    text.append("\n".join(content["traceback"]))
                case "status" if content["execution_state"] == "idle":
                    break
        seen = COLOUR.sub("", "\n".join(text))
        if reply is None:
            return Cell(None, seen, None, ended)
        content = reply["content"]
        if content["status"] != "ok":
            return Cell(None, seen, content.get("ename", content["status"]), ended)
        seconds = float(content["user_expressions"]["seconds"]["data"]["text/plain"])
        return Cell(seconds, seen, "", ended)

    def next(self, get, seconds: float):
        """The next message about the last cell; None if there is none within the time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                message = get(timeout=left)
            except Empty:
                return None
            if message["parent_header"].get("msg_id") == self.sent:
                return message
        return None

    def interrupt(self):
        """Interrupt the kernel, like JupyterLab's stop button."""
        self.manager.interrupt_kernel()

    def kill(self):
        """Kill the kernel, as the system does when memory runs out."""
        os.kill(self.pid, signal.SIGKILL)

    def descendants(self) -> list[psutil.Process]:
        """Processes that this kernel started, orphans too, but not itself and the spares."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.pid != self.pid and process.environ().get(MARK) == self.mark
                if ours and process.name() != SPARE:  # the server keeps those for the next call
                    found.append(process)
            except psutil.Error:  # gone, or another user's
                pass
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def close(self):
        """End the kernel and every process that it left."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        for process in self.descendants():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)


def timed(code: str) -> str:
    """Wrap a cell with a clock; afterwards `_seconds` is its duration."""
    clock = "_time.perf_counter()"
    return f"import time as _time\n_began = {clock}\n{code}\n_seconds = {clock} - _began"

"""A real IPython kernel, driven as JupyterLab drives one: cells in, times, text and errors out."""

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

ROOT = Path(__file__).resolve().parents[2]
MARK = "BENCH_KERNEL"  # environment: tells a kernel's descendants from all other processes
NOTES = "BENCH_NOTES"  # environment: a folder where ranks leave word for the benchmark
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class ThisPython(KernelSpecManager):
    """Whatever kernel is named python3 on this machine: run this interpreter."""

    def get_kernel_spec(self, kernel_name):
        return KernelSpec(**get_kernel_dict())


@dataclass
class Cell:
    """What became of one cell.

    Attributes:
        seconds: its code took, measured in the kernel; None when it did not end by itself.
        text: everything the reader sees: prints, warnings, the traceback.
        error: the exception's name; "" when there was none; None when the cell did not end.
        ended: when the reader knew, on the clock `time.monotonic` that all processes share.
    """

    seconds: float | None
    text: str
    error: str | None
    ended: float

    @property
    def ok(self) -> bool:
        return self.error == ""


class Kernel:
    """One fresh kernel, with an environment as on a student's machine, one thread a process.

    Attributes:
        temporary: its own folder for temporary files, so that leftovers can be counted.
        notes: a folder that only the benchmark writes to.
    """

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.temporary, self.notes = self.folder / "tmp", self.folder / "notes"
        self.temporary.mkdir()
        self.notes.mkdir()
        self.mark = uuid.uuid4().hex
        self.used = False  # for those who use one kernel several times
        environ = {
            **os.environ,
            MARK: self.mark,
            NOTES: str(self.notes),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        }
        # Where compiled modules may not be kept, each rank compiles what it imports anew.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.manager = KernelManager(
            kernel_spec_manager=ThisPython(),
            connection_file=str(self.folder / "kernel.json"),
            transport="ipc",
            ip=str(self.folder / "kernel"),
        )
        # The kernel shows its output to the client, and repeats some of it to the terminal.
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
        """Have a cell run; `listen` hears how it goes."""
        self.sent = self.client.execute(timed(code), user_expressions={"seconds": "_seconds"})

    def time(self, code: str, patience: float = 120.0) -> float | None:
        """The seconds of a cell that is to end well; None if it hangs.

        Raises:
            RuntimeError: it failed; with all that it said.
        """
        cell = self.run(code, patience)
        if cell.error:
            raise RuntimeError(f"{code}\n{cell.text}")
        return cell.seconds

    def listen(self, patience: float) -> Cell:
        """Gather what the cell sent last says until it has ended, at most `patience` seconds."""
        until = time.monotonic() + patience
        reply = None
        while reply is None and time.monotonic() < until and self.manager.is_alive():
            reply = self.next(self.client.get_shell_msg, 0.1)
        ended = time.monotonic()
        text = []
        # What was shown goes another way than the reply, and may come after it.
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
        """The next message about the cell sent last; None when none comes within the time."""
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
        """As the button in JupyterLab does."""
        self.manager.interrupt_kernel()

    def kill(self):
        """As the system does when memory runs out."""
        os.kill(self.pid, signal.SIGKILL)

    def descendants(self) -> list[psutil.Process]:
        """All processes that come from this kernel, itself left out, orphans included."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.pid and process.environ().get(MARK) == self.mark:
                    found.append(process)
            except psutil.Error:  # gone, or another user's
                pass
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def close(self):
        """End the kernel and whatever it left."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        for process in self.descendants():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)


def timed(code: str) -> str:
    """The cell with a clock around it; `_seconds` then holds what it took."""
    clock = "_time.perf_counter()"
    return f"import time as _time\n_began = {clock}\n{code}\n_seconds = {clock} - _began"

"""Start the program that runs a submitted function, shut in, and end it.

bubblewrap gives it: no network but its own loopback, no processes but its own, no files but Python,
the course's package (read only, without the exercises' checks) and a small /tmp. The system limits
its files and processes. This process watches its memory, its processes and its time.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from helpers.check.grading import frames

COURSE = Path(__file__).resolve().parents[3]
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
START_SECONDS = 120.0  # to import torch on a busy machine


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a sandbox may use.

    Attributes:
        memory_bytes: of all its processes together, watched several times a second.
        processes: at the same time.
        file_bytes: of one file, and of /tmp.
    """

    memory_bytes: int = 6 << 30
    processes: int = 100
    file_bytes: int = 256 << 20


@cache
def bubblewrap() -> str | None:
    """Return the program bwrap, if it is installed and the system lets it work."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    line = [program, *walls(Limits()), "/bin/true"]
    return program if subprocess.run(line, capture_output=True).returncode == 0 else None


def walls(limits: Limits) -> list[str]:
    """Return bwrap's options."""
    given = ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    given += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/dev/shm"):
        given += ["--size", str(limits.file_bytes), "--tmpfs", folder]
    for path in SYSTEM:
        given += ["--ro-bind-try", path, path]
    for path in dict.fromkeys((sys.base_prefix, sys.prefix, sysconfig.get_path("purelib"))):
        given += ["--ro-bind", path, path]
    helpers = COURSE / "helpers"
    given += ["--ro-bind", str(helpers), str(helpers)]
    for hidden in sorted((helpers / "check").glob("week*")):
        given += ["--tmpfs", str(hidden)]
    variables = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(COURSE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": os.environ.get("TRITON_INTERPRET", ""),
    }
    for name, value in variables.items():
        given += ["--setenv", name, value] if value else []
    return [*given, "--chdir", "/tmp"]


class Broken(Exception):
    """The sandbox has ended, or was ended; says why."""


class Sandbox:
    """A running program that answers orders, each with one message.

    Args:
        trusted: run the program without walls, if there is no bubblewrap.

    Raises:
        RuntimeError: there is no bubblewrap, and the submissions are not trusted.
    """

    def __init__(self, limits: Limits | None = None, trusted: bool = False):
        self.limits = limits or Limits()
        wrap = bubblewrap()
        if wrap is None and not trusted:
            raise RuntimeError("there is no sandbox on this machine: bubblewrap does not work here")
        line = [sys.executable, "-m", "helpers.check.grading.inside"]
        place = {}
        if wrap:
            line = [wrap, *walls(self.limits), *line]
        else:
            self.folder = tempfile.TemporaryDirectory(prefix="grade-")
            place = {"cwd": self.folder.name, "env": {**os.environ, "PYTHONPATH": str(COURSE)}}
        self.why = ""
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=self.limit,
            **place,
        )
        self.orders, self.answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        try:
            self.ask(b"", START_SECONDS)  # it has imported what it needs
        except Broken as error:
            self.end()
            raise RuntimeError(f"the sandbox does not start: {error}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def limit(self):
        """Run in the new process, before its program."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limits.file_bytes,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def ask(self, order: bytes, seconds: float) -> bytes:
        """Send an order, and return the answer.

        Raises:
            Broken: it has ended, used too much, or not answered in time. It is ended then.
        """
        try:
            frames.write(self.orders, order)
            return frames.read(self.answers, seconds, self.within_limits)
        except frames.Silence:
            why = f"not returned after {seconds:.0f} seconds"
        except frames.Ended:
            why = self.why or f"ended the process {self.ending()}"
        except ValueError as error:
            why = f"answered with {error}"
        self.end()
        raise Broken(why)

    def ending(self) -> str:
        try:
            code = self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "without an answer"
        code = code - 128 if code > 128 else -code  # bwrap passes on a signal as 128 + number
        if code in list(signal.Signals):
            return f"with {signal.Signals(code).name}"
        return f"with exit code {-code}"

    def within_limits(self) -> bool:
        """Whether the program still keeps its limits; if not, `why` names the limit."""
        count, used = 0, 0
        try:
            top = psutil.Process(self.process.pid)
            for process in (top, *top.children(recursive=True)):
                try:
                    memory = process.memory_info()
                    used += memory.rss - getattr(memory, "shared", 0)
                    count += 1
                except psutil.Error:
                    continue
        except psutil.Error:
            return True  # it has ended: the pipe will tell
        if count > self.limits.processes:
            self.why = f"started more than {self.limits.processes} processes"
        elif used > self.limits.memory_bytes:
            self.why = f"used more than {self.limits.memory_bytes >> 20:,} MB of memory"
        return not self.why

    def end(self):
        """End the program and all that it has started."""
        for process in self.family():
            try:
                process.kill()
            except psutil.Error:
                pass
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def family(self) -> list[psutil.Process]:
        try:
            top = psutil.Process(self.process.pid)
            return [*top.children(recursive=True), top]
        except psutil.Error:
            return []

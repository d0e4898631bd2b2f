"""Start the program that runs a submitted function, shut in, and end it.

bubblewrap gives it: no network but its own loopback, no processes but its own, no rights, no files
but Python, the course's package (read only, without the exercises' checks) and a small /tmp. The
program limits the size of its files itself, before it gets submitted code. This process watches its
memory, its processes and its time.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from helpers.check.grading import frames
from helpers.check.grading.definitions import COURSE

SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
START_SECONDS = 120.0  # to import torch on a busy machine
BLOCK = 512  # bytes of a block in os.stat
NAMELESS = "/memfd:"  # a file in memory, which no folder's size limits


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a sandbox may use.

    Attributes:
        memory_bytes: of all its processes together, watched several times a second.
        processes: at the same time.
        file_bytes: of one file, and of /tmp.
        seconds: for all calls of one exercise together, without the start.
    """

    memory_bytes: int = 6 << 30
    processes: int = 100
    file_bytes: int = 256 << 20
    seconds: float = 600.0


def bubblewrap() -> str | None:
    """Return the program bwrap, if it is installed and the system lets it work."""
    return None if why_not() else shutil.which("bwrap")


@cache
def why_not() -> str:
    """Return why there is no bubblewrap here; "" if there is."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap (bwrap) is missing."
    tried = subprocess.run([program, *walls(Limits()), "/bin/true"], capture_output=True, env={})
    if tried.returncode == 0:
        return ""
    return f"the system forbids bubblewrap ({tried.stderr.decode(errors='replace').strip()})."


def walls(limits: Limits) -> list[str]:
    """Return bwrap's options.

    Without `--cap-drop`, root's code keeps the right to mount: it would make the course writable,
    and uncover the checks.
    """
    given = ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    given += ["--cap-drop", "ALL"]
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
        folder = ["--tmpfs"] if hidden.is_dir() else ["--ro-bind", "/dev/null"]
        given += [*folder, str(hidden), "--remount-ro", str(hidden)]
    for folder in ("/dev", "/"):  # bwrap makes them writable, and of any size
        given += ["--remount-ro", folder]
    variables = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(COURSE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": os.environ.get("TRITON_INTERPRET", ""),
    }
    for name, value in variables.items():
        given += ["--setenv", name, value] if value else []
    return [*given, "--chdir", "/tmp"]


class Broken(Exception):
    """The sandbox has ended, or was ended; says why."""


class Late(Broken):
    """It was ended because it did not answer in time."""


class NotStarted(RuntimeError):
    """The sandbox did not start: no fault of the submission."""


class Sandbox:
    """A running program that answers orders, each with one message.

    Args:
        trusted: run the program without walls, if there is no bubblewrap.
        wait: until it has started; else call `wait`.

    Raises:
        NotStarted: there is no bubblewrap, and the submissions are not trusted; or the machine is
            too busy.
    """

    def __init__(self, limits: Limits | None = None, trusted: bool = False, wait: bool = True):
        self.limits = limits or Limits()
        wrap = bubblewrap()
        if wrap is None and not trusted:
            raise NotStarted("there is no sandbox on this machine: bubblewrap does not work here")
        self.trusted, self.ranks = trusted, []
        self.control, theirs = socket.socketpair()
        given = [str(self.limits.file_bytes), str(theirs.fileno())]
        line = [sys.executable, "-m", "helpers.check.grading.inside", *given]
        self.folder = None
        place = {"env": {}}  # bwrap's own environment can be read inside, in /proc/1
        if wrap:
            line = [wrap, *walls(self.limits), *line]
        else:
            self.folder = tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True)
            place = {"cwd": self.folder.name, "env": {**os.environ, "PYTHONPATH": str(COURSE)}}
        self.why, self.look_again = "", 0.0
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
            **place,
        )
        theirs.close()
        self.orders, self.answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.last = time.monotonic() + START_SECONDS
        if wait:
            self.wait()

    def wait(self):
        """Return when the program has imported what it needs. Raises NotStarted."""
        try:
            self.ask(b"", START_SECONDS)
        except Broken as error:
            raise NotStarted(f"the sandbox does not start: it has {error}") from None
        self.last = time.monotonic() + self.limits.seconds

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def ask(self, order: bytes, seconds: float) -> bytes:
        """Send an order, and return the answer.

        Raises:
            Late: it has not answered in time, or all calls together took too long.
            Broken: it has ended, or used too much. It is ended then.
        """
        left = self.last - time.monotonic()
        end = time.monotonic() + min(seconds, left)
        try:
            self.tell(order, end)
            return self.hear(end)
        except frames.Silence:
            self.end()
            if left < seconds:
                raise Late(f"taken more than {self.limits.seconds:.0f} seconds in all") from None
            raise Late(f"not returned after {seconds:.0f} seconds") from None

    def tell(self, order: bytes, end: float):
        """Send an order. Raises frames.Silence after `end`, and Broken as `ask`."""
        self.unbroken(frames.write, self.orders, order, end)

    def hear(self, end: float) -> bytes:
        """Return the next message. Raises frames.Silence after `end`, and Broken as `ask`."""
        return self.unbroken(frames.read, self.answers, end)

    def unbroken(self, move, *given):
        try:
            return move(*given, self.within_limits)
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
        number = code - 128 if code > 128 else -code  # bwrap passes on a signal as 128 + number
        if number in list(signal.Signals):
            return f"with {signal.Signals(number).name}"
        return f"with exit code {code}"

    def within_limits(self) -> bool:
        """Whether the program still keeps its limits; if not, `why` names the limit."""
        if time.monotonic() < self.look_again:
            return not self.why
        self.look_again = time.monotonic() + frames.TURN
        family = self.family()  # none, if it has ended: the pipe will tell
        if len(family) > self.limits.processes:
            self.why = f"started more than {self.limits.processes} processes"
        elif memory_of(family, self.limits.memory_bytes) > self.limits.memory_bytes:
            self.why = f"used more than {self.limits.memory_bytes >> 20:,} MB of memory"
        return not self.why

    def check_limits(self):
        """Raise Broken, and end the program, if it does not keep its limits."""
        if not self.within_limits():
            self.end()
            raise Broken(self.why)

    def end(self):
        """End the program and all that it has started, and what it is the first of."""
        for one in self.ranks:
            one.end()
        self.ranks = []
        for process in self.family():
            try:
                process.kill()
            except psutil.Error:
                pass
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.control.close()
        if self.folder:
            self.folder.cleanup()

    def family(self) -> list[psutil.Process]:
        """Return the program and all that it has started; it comes last."""
        try:
            top = psutil.Process(self.process.pid)
            return [*top.children(recursive=True), top]
        except psutil.Error:
            return []


def memory_of(family: Sequence[psutil.Process], enough: int) -> int:
    """Return the bytes that the processes use together, exact only above `enough`.

    What they share counts once. The exact count takes milliseconds for each process. So it follows
    only where the quick count, in which shared pages count several times, is above `enough`.
    """
    files = nameless_files(family)
    quick = sum(pages(process, exact=False) for process in family) + files
    if quick <= enough:
        return quick
    return sum(pages(process, exact=True) for process in family) + files


def pages(process: psutil.Process, exact: bool) -> int:
    """Return the process's own pages, and all that it shares, or its share of them if exact.

    The exact count leaves out files in memory: `nameless_files` counts them, mapped or not.
    """
    try:
        memory = process.memory_info()
        if not exact:
            return memory.rss
        try:
            maps = process.memory_maps()
        except (psutil.AccessDenied, AttributeError):  # no right to look, or no Linux
            return memory.rss - getattr(memory, "shared", 0)
        return sum(one.pss for one in maps if not one.path.startswith(NAMELESS))
    except psutil.Error:
        return 0  # it has just ended


def nameless_files(family: Sequence[psutil.Process]) -> int:
    """Return the bytes of the files without a name that the processes have open, each once."""
    found = {}
    for process in family:
        folder = f"/proc/{process.pid}/fd"
        try:
            for file in os.listdir(folder):
                if os.readlink(f"{folder}/{file}").startswith(NAMELESS):
                    about = os.stat(f"{folder}/{file}")
                    found[about.st_dev, about.st_ino] = about.st_blocks * BLOCK
        except OSError:
            continue
    return sum(found.values())

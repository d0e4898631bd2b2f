"""Run a student's function on MPI ranks, and read what each rank reports.

`mpiexec` listens on all network interfaces, for anyone. Where the system allows it, mpiexec gets a
network of its own, with nothing but the loopback, and a /dev/shm of its own: an aborted program
leaves files there.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from functools import cache
from pathlib import Path

import cloudpickle

from helpers.check.submission.job import environment
from helpers.runtime.private import private_folder

PROGRAM = "helpers.check.week03.mpi_rank"
ALONE = 'ip link set lo up && mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"'
PRIVATE = ("unshare", "--map-root-user", "--net", "--mount", "sh", "-c", ALONE)
LIMIT = 90.0  # seconds for everything, Python's start on each rank included
LET_OTHERS_WRITE = 1.0  # seconds between the first rank's stack and the end of all ranks


class NoMPI(RuntimeError):
    """This machine has no mpiexec, or no mpi4py."""


def run_on_mpi_ranks(fn, ranks: int, seconds: float) -> "Folder":
    """Start `mpiexec -n ranks`, wait for its end, and return what the ranks wrote.

    Args:
        fn: travels by value, so a function of a cell will do.
        seconds: a case that takes longer counts as a hang.

    Raises:
        NoMPI: mpiexec or mpi4py is not installed.
    """
    mpiexec = find_mpiexec()
    folder = Folder(Path(tempfile.mkdtemp(prefix="mpi-", dir=private_folder())))
    (folder.path / "function").write_bytes(cloudpickle.dumps(fn))
    line = [*private(), mpiexec, "-n", str(ranks)]
    line += [sys.executable, "-m", PROGRAM, str(folder.path), str(seconds)]
    with open(folder.path / "printed", "wb") as printed:
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            env=environment(), start_new_session=True,
        )  # fmt: skip
        try:
            wait(process, folder)
        finally:
            end(process)
    return folder


def find_mpiexec() -> str:
    """The mpiexec of this installation, else the first on the PATH."""
    found = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or shutil.which("mpiexec")
    if found is None:
        raise NoMPI("there is no mpiexec on this machine. Install it with: pip install mpich")
    try:
        import mpi4py  # noqa: F401  importing the package does not start MPI
    except ImportError:
        raise NoMPI("mpi4py is not installed. Install it with: pip install mpi4py") from None
    return found


@cache
def private() -> tuple[str, ...]:
    """The command that gives a program its own network; nothing where the system refuses."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return ()
    tried = subprocess.run([*PRIVATE, "true"], capture_output=True)
    return () if tried.returncode else PRIVATE


def wait(process: subprocess.Popen, folder: "Folder"):
    """Until mpiexec ends, a rank reports a hang, or the time is over."""
    end_of_time = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < end_of_time:
        if folder.stacks():
            time.sleep(LET_OTHERS_WRITE)
            return
        time.sleep(0.02)


def end(process: subprocess.Popen):
    """mpiexec ends its ranks when it is asked to; a rank that is left ends at its own alarm."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()


class Folder:
    """The files that the ranks of one run have written.

    Attributes:
        path: a private folder, gone with this process.
    """

    def __init__(self, path: Path):
        self.path = path

    def report(self, ranks: int, rank: int) -> str | None:
        """What this rank wrote about one case, as JSON; None if it did not get so far."""
        file = self.path / f"report-{ranks}-{rank}"
        return file.read_text() if file.exists() else None

    def stacks(self) -> dict[int, str]:
        """Rank -> its Python stack, of the ranks that made no progress in time."""
        files = sorted(self.path.glob("stack-*"))
        return {int(f.name.split("-")[1]): f.read_text() for f in files if f.stat().st_size}

    def printed(self) -> str:
        """What mpiexec and the ranks printed."""
        return (self.path / "printed").read_text(errors="replace")

"""Start a script on ranks, wait for its end, and read what it printed.

The ranks run on the CPU, so that the check gives the same answer on every machine. `torchrun` opens
a port on all network interfaces. Where the system allows it, it gets a network of its own.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from helpers.runtime.private import private_folder

RANK = Path(__file__).with_name("rank.py")
PATIENCE = 120.0  # seconds without a sign of life; a busy machine imports torch slowly
LET_WRITE = 0.5  # seconds for the stack of a silent rank
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a script left behind.

    Attributes:
        losses: step -> loss, as its lines of JSON say. `first` is the first step.
        saved: the numbers of its lines {"saved": …}.
        held: rank -> {kind: bytes}.
        writers: path below the folder of checkpoints -> the ranks that wrote it.
        twice: a step that was printed twice, or None.
        code: its exit code.
        hung: it was silent for too long, and was ended.
        errors: the end of what it printed on the error stream.
    """

    losses: dict[int, float] = field(default_factory=dict)
    saved: list[int] = field(default_factory=list)
    held: dict[int, dict[str, int]] = field(default_factory=dict)
    writers: dict[str, set[int]] = field(default_factory=dict)
    twice: int | None = None
    code: int = 0
    hung: bool = False
    errors: str = ""

    @property
    def first(self) -> int | None:
        return next(iter(self.losses), None)


def by_torchrun(arguments: Sequence[str], ranks: int, **streams) -> subprocess.Popen:
    """Start `python rank.py arguments` on each rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line = [*own_network(), *launcher, f"--nproc-per-node={ranks}", str(RANK), *arguments]
    return subprocess.Popen(
        line, stdin=subprocess.DEVNULL, env=environment(), start_new_session=True, **streams
    )


@cache
def own_network() -> tuple[str, ...]:
    """The command that gives a program its own network; nothing where the system refuses."""
    alone = (sys.executable, "-m", "helpers.runtime.alone")
    tried = subprocess.run([*alone, "true"], capture_output=True, env=environment())
    return () if tried.returncode else alone


def environment() -> dict[str, str]:
    """This process's, without a launcher's variables, and without GPUs."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
    paths = [str(Path(__file__).parents[3]), *(path for path in sys.path if path)]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    # A limit on files must meet the checkpoint first, not Python's cache of a module.
    return {**kept, **own, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}


def run(
    script: Path,
    ranks: int,
    options: dict[str, object],
    *,
    kill_at_step: int | None = None,
    file_bytes: int | None = None,
    start: Callable = by_torchrun,
    patience: float = PATIENCE,
) -> Result:
    """Run the script with these options to its end. `folder` must be one of the options.

    Args:
        kill_at_step, file_bytes: see `rank`.
        start: starts the ranks, like `by_torchrun`.
        patience: seconds without a sign of life after which the script counts as hung.
    """
    notes = Path(tempfile.mkdtemp(prefix="run-", dir=private_folder()))
    orders = {"notes": str(notes), "watch": str(options["folder"])}
    orders |= {"kill_at_step": kill_at_step, "file_bytes": file_bytes}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    with open(notes / "out", "wb") as out, open(notes / "err", "wb") as err:
        process = start(
            [json.dumps(orders), str(script), *arguments], ranks, stdout=out, stderr=err
        )
        try:
            hung = wait(process, notes, patience)
        finally:
            end(process, notes)
    return read(notes, process.returncode, hung)


def wait(process, notes: Path, patience: float) -> bool:
    """Wait for the end. True if no file grows for too long; the ranks then print their stacks."""
    seen, since = None, time.monotonic()
    while process.poll() is None:
        sizes = [file.stat().st_size for file in notes.iterdir()]
        if sizes != seen:
            seen, since = sizes, time.monotonic()
        if time.monotonic() - since > patience:
            send(notes, signal.SIGUSR1, LET_WRITE)
            return True
        time.sleep(0.02)
    return False


def end(process, notes: Path):
    """End the launcher, and its ranks: torchrun's ranks have sessions of their own."""
    if process.poll() is None:
        process.kill()
        send(notes, signal.SIGKILL)
    process.wait()


def send(notes: Path, number: int, pause: float = 0.0):
    """Send a signal to all ranks, one by one: two stacks at once would mix their lines."""
    for file in sorted(notes.glob("notes-*")):
        for fact in lines_of(file):
            if "pid" in fact:
                try:
                    os.kill(fact["pid"], number)
                    time.sleep(pause)
                except ProcessLookupError:
                    pass


def read(notes: Path, code: int, hung: bool) -> Result:
    losses, saved, held, twice = {}, [], {}, None
    for line in lines_of(notes / "out"):
        if is_whole(line.get("step")) and is_real(line.get("loss")):
            if line["step"] in losses and twice is None:
                twice = line["step"]
            losses[line["step"]] = float(line["loss"])
        elif is_whole(line.get("saved")):
            saved.append(line["saved"])
        elif is_whole(line.get("rank")) and isinstance(line.get("bytes"), dict):
            held[line["rank"]] = {k: v for k, v in line["bytes"].items() if is_real(v)}
    writers = defaultdict(set)
    for file in notes.glob("notes-*"):
        for fact in lines_of(file):
            if "wrote" in fact:
                writers[fact["wrote"]].add(int(file.name.removeprefix("notes-")))
    errors = (notes / "err").read_text(errors="replace")
    return Result(
        losses=losses, saved=saved, held=held, writers=dict(writers), twice=twice,
        code=code, hung=hung, errors=errors,
    )  # fmt: skip


def lines_of(file: Path) -> list[dict]:
    """The lines of a file that are JSON objects."""
    found = []
    for line in file.read_text(errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def is_whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_real(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

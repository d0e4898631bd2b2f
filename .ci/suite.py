"""Run the tests: most of them in parallel, then, one by one, those that need the machine alone.

    suite.py [paths and options for pytest]

The second run is for tests with the mark `alone`. They measure time, or break things on purpose.
It collects only the files with that mark: to collect all tests takes 20 seconds.

Tests start real processes, so a busy machine makes a sound test fail now and then. If at most three
tests failed, they run once more, alone. A test that passes then is named as unsteady: mend it.

On Linux, a skipped test of DeepSpeed counts as failed: it would hide that DeepSpeed is not ready.

The program exits with an error if a test failed that did not pass alone. Its last line is the sum.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ("--nbval-lax", "--nbval-current-env")
REPORT = ("-o", "junit_family=xunit1", "--junitxml")
NOTHING_FOUND = 5  # pytest's exit code; the other run may have found tests
# With more threads than cores, a thread that spins while it waits blocks the core for the thread
# that it waits for: a training step of two threads then needs ten times as long.
POLITE = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
KINDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}
MUST_RUN = "test_deepspeed"  # files of tests that may not be skipped, on Linux
AGAIN = 3  # failed tests that are worth a second run; more than these are no accident


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def workers() -> int:
    """Return the number of pytest's processes: more than cores, because many tests wait.

    A test waits for ranks that start and end, for a timeout, or for a kernel.
    """
    return cores() + (cores() + 1) // 2


@contextlib.contextmanager
def turns(policy: str):
    """Let processes that start meanwhile take turns by a policy of Linux, where it is allowed.

    By SCHED_BATCH they do not interrupt each other. With more ranks than cores, a thread that wakes
    up often interrupts one that holds a lock which it needs. Then gloo's thread tries again and
    again: tests of tensor and pipeline parallelism took a sixth longer on two cores.
    """
    if not hasattr(os, policy):
        yield
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, getattr(os, policy), os.sched_param(0))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, *before)


def marked(arguments: list[str]) -> list[str]:
    """Return the files with a test that needs the machine alone; none if paths are given."""
    if any((ROOT / argument.split("::")[0]).exists() for argument in arguments):
        return []
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if "mark.alone" in file.read_text(encoding="utf-8")]


@dataclass
class Run:
    """A run of pytest.

    Attributes:
        code: its exit code.
        counts: the tests by their result.
        failed: pytest's names of the failed tests; of a failed cell, its notebook.
        refused: names of the tests that were skipped and must run.
    """

    code: int
    counts: Counter
    failed: list[str]
    refused: list[str] = field(default_factory=list)


def pytest(*options: str, **environ: str) -> Run:
    """Run pytest in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", *NOTEBOOKS, *REPORT, report, *options]
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environ})
        try:
            code = process.wait()
        except KeyboardInterrupt:  # pytest was interrupted too, and cleans up
            process.wait()
            raise
        finally:
            process.terminate()  # no effect if it has ended; else this process itself is ending
        counts, failed, refused = read(report) if report.exists() else (Counter(), [], [])
    if code not in (0, NOTHING_FOUND) and not counts["failed"]:
        counts["failed"] += 1  # pytest itself failed
    # a shell counts signals in this way
    return Run(code if code >= 0 else 128 - code, counts, failed, refused)


def read(report: Path) -> tuple[Counter, list[str], list[str]]:
    """Read a report in JUnit's format: tests by result, names of the failed and of the refused."""
    counts, failed, refused = Counter(), [], []
    for case in ElementTree.parse(report).iter("testcase"):
        found = [KINDS[part.tag] for part in case if part.tag in KINDS]
        result = "failed" if "failed" in found else found[0] if found else "passed"
        counts[result] += 1
        if result == "failed":
            failed.append(name(case.attrib))
        if result == "skipped" and must_run(case.get("file", "")):
            refused.append(name(case.attrib))
    return counts, list(dict.fromkeys(failed)), refused


def must_run(file: str) -> bool:
    """Whether a test of this file may not be skipped on this system."""
    return sys.platform == "linux" and Path(file).name.startswith(MUST_RUN)


def name(case: Mapping[str, str]) -> str:
    """Pytest's name of a test. A cell needs the cells above it, so its name is the notebook's."""
    file, test = case.get("file", ""), case.get("name", "")
    return file if file.endswith(".ipynb") else f"{file}::{test}"


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # A script's background job ignores interrupts, but some tests raise interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    many = ("-n", str(workers()), "--dist", "loadgroup", "-m", "not alone")
    with turns("SCHED_BATCH"):
        together = pytest(*many, *arguments, **POLITE)
    alone = pytest("-n", "0", "-m", "alone", *marked(arguments), *arguments)
    total, codes = together.counts + alone.counts, {together.code, alone.code}
    failed = [*together.failed, *alone.failed]
    if 0 < len(failed) <= AGAIN and codes <= {0, 1, NOTHING_FOUND}:
        again = pytest("-n", "0", *failed)
        if again.code == 0:
            print(*(f"unsteady: {test} failed, and passed alone" for test in failed), sep="\n")
            total["passed"] += total.pop("failed")
            codes = {0}
    refused = [*together.refused, *alone.refused]
    if refused:
        print(*(f"skipped, and must run: {test}" for test in refused), sep="\n")
        total["skipped"] -= len(refused)
        total["failed"] += len(refused)
        codes.add(1)
    print(", ".join(f"{total[kind]} {kind}" for kind in ("passed", "failed", "skipped")))
    return max(codes - {NOTHING_FOUND}, default=NOTHING_FOUND)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)

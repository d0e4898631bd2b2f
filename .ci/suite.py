"""Run the tests: most of them on all cores, then, one by one, those that need the machine alone.

    suite.py [paths and options for pytest]

The second run is for tests with the mark `alone`. They measure time, or break things on purpose.
The program exits with an error if either run fails. Its last line is the sum of both runs.
"""

import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ("--nbval-lax", "--nbval-current-env")
REPORT = ("-o", "junit_family=xunit1", "--junitxml")
NOTHING_FOUND = 5  # pytest's exit code; the other run may have found tests
# With more threads than cores, a thread that spins while it waits blocks the core for the thread
# that it waits for: a training step of two threads then needs ten times as long.
POLITE = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
KINDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def pytest(*options: str, **environ: str) -> tuple[int, Counter]:
    """Run pytest in its own process; return its exit code, and the tests by their result."""
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
        counts = count(report) if report.exists() else Counter()
    if code not in (0, NOTHING_FOUND) and not counts["failed"]:
        counts["failed"] += 1  # pytest itself failed
    return code if code >= 0 else 128 - code, counts  # a shell counts signals in this way


def count(report: Path) -> Counter:
    """Count tests by their result, from a report in JUnit's format."""
    counts = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        found = {KINDS[part.tag] for part in case if part.tag in KINDS}
        counts["failed" if "failed" in found else found.pop() if found else "passed"] += 1
    return counts


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # A script's background job ignores interrupts, but some tests raise interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    together = pytest(
        *("-n", str(cores()), "--dist", "loadgroup", "-m", "not alone", *arguments), **POLITE
    )
    alone = pytest("-n", "0", "-m", "alone", *arguments)
    total = together[1] + alone[1]
    print(", ".join(f"{total[kind]} {kind}" for kind in ("passed", "failed", "skipped")))
    return max({together[0], alone[0]} - {NOTHING_FOUND}, default=NOTHING_FOUND)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)

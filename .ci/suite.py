"""Run the tests: most of them in parallel, then, one by one, those that need the machine alone.

    suite.py [--all | --durations] [paths and options for pytest]

Without a path, it runs the tests that decide whether an installation works, in a few minutes: all
but those that .ci/durations.json leaves out (see choose.py). `--all` runs every test and notebook,
and `--durations` also writes that file anew. With a path, all tests below the path run.

Each process takes one file after another, the longest first (tests/share.py). The second run is for
tests with the mark `alone`. They measure time, or break things on purpose.

Tests start real processes, so a busy machine makes a sound test fail now and then. If at most three
tests failed, they run once more, alone. A test that passes then is named as unsteady: mend it. Here
it counts as passed, and under CI (the variable CI) as failed.

On Linux, a skipped test of DeepSpeed counts as failed: it would hide that DeepSpeed is not ready.

The program exits with an error if a test failed. Its last line is the sum.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import choose
from shares import Run, run

ROOT = Path(__file__).resolve().parent.parent
NOTHING_FOUND = 5  # pytest's exit code; the other run may have found tests
# With more threads than cores, a thread that spins while it waits blocks the core for the thread
# that it waits for: a training step of two threads then needs ten times as long.
POLITE = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
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


def files(arguments: Iterable[str] = ("tests", "notebooks")) -> list[str]:
    """Return the files of tests and the notebooks below these paths; names of tests stay."""
    found = []
    for argument in arguments:
        path = ROOT / argument
        inside = [*path.rglob("test_*.py"), *path.rglob("*.ipynb")] if path.is_dir() else []
        found += sorted(str(file.relative_to(ROOT)) for file in inside) if inside else [argument]
    return [file for file in found if ".ipynb_checkpoints" not in file]


def marked(names: list[str]) -> list[str]:
    """Return those whose file has a test that needs the machine alone."""
    return [name for name in names if "mark.alone" in text_of(name)]


def text_of(name: str) -> str:
    file = ROOT / name.split("::")[0]
    return file.read_text("utf-8") if file.suffix == ".py" and file.is_file() else ""


def must_run(test: str) -> bool:
    """Whether this test may not be skipped on this system."""
    return sys.platform == "linux" and Path(test.split("::")[0]).name.startswith(MUST_RUN)


def judge(together: Run, alone: Run) -> tuple[Counter, int]:
    """Return the sum of both runs, and the exit code. Print what is unsteady, and what must run."""
    tests, codes = together.tests | alone.tests, {together.code, alone.code}
    total = Counter(tests.values())
    failed = [*together.failed(), *alone.failed()]
    accident = 0 < len(failed) <= AGAIN and codes <= {0, 1, NOTHING_FOUND}
    if accident and run(failed).code == 0:
        print(*(f"unsteady: {test} failed, and passed alone" for test in failed), sep="\n")
        if not os.environ.get("CI"):
            total["passed"] += total.pop("failed")
            codes = {0}
    refused = [test for test, found in tests.items() if found == "skipped" and must_run(test)]
    if refused:
        print(*(f"skipped, and must run: {test}" for test in refused), sep="\n")
        total["skipped"] -= len(refused)
        total["failed"] += len(refused)
        codes.add(1)
    return total, max(codes - {NOTHING_FOUND}, default=NOTHING_FOUND)


def main(arguments: list[str]) -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests and notebooks download nothing
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # A script's background job ignores interrupts, but some tests raise interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--durations", action="store_true")
    given, rest = parser.parse_known_args(arguments)
    paths = [one for one in rest if (ROOT / one.split("::")[0]).exists()]
    options = [one for one in rest if one not in paths]
    names = files(paths) if paths else files()
    short = not (paths or given.all or given.durations)
    left_out = choose.left_out() if short else []
    names = sorted(set(names) - set(left_out), key=choose.longest_first)
    with turns("SCHED_BATCH"):
        together = run(
            names, "-m", "not alone", *options, processes=workers(), left_out=left_out, **POLITE
        )
    alone = run(marked(names), "-m", "alone", *options, left_out=left_out)
    total, code = judge(together, alone)
    for why, count in (together.reasons + alone.reasons).items():
        print(f"{count} × {why}")
    if given.durations and code in (0, 1):
        choose.write(together, alone, workers())
    print(", ".join(f"{total[kind]} {kind}" for kind in ("passed", "failed", "skipped")))
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)

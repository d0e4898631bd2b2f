"""Grade a folder of submitted notebooks; write tables, and a page of feedback for each student.

    make grade SUBMISSIONS=folder
    python -P -m helpers.check.grading.grade folder [--to grades.csv] [--weights weights.csv]
        [--jobs N] [--secret N] [--trust]

Every notebook below the folder is graded: folder/name/week04_….ipynb, or folder/name.ipynb. An
exercise is expected if the course's notebook of that name has it, and graded wherever it is found.
Beside grades.csv, a row an exercise, are written scores.csv, a row a student, and feedback/. A file
of weights has lines such as `zero_1,3`; other exercises weigh 1.
Every exercise gets a sandbox of its own, and inputs that are drawn for this run. Without bubblewrap
there is no sandbox: --trust then runs the submitted code as you, with your files and your network.
"""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # Python looks for modules in the folder that it is started in: there may be submissions.
    os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])

import argparse
import functools
import inspect
import multiprocessing
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import helpers.check as check
from helpers.check import elsewhere, hidden
from helpers.check.grading import stand_in
from helpers.check.grading.sandbox import Limits, NotStarted, Sandbox, bubblewrap, why_not
from helpers.check.grading.scores import read_weights, scores, write_scores
from helpers.check.grading.submissions import Task, exercises, found_in, ignored
from helpers.check.grading.table import Grade, summary, write
from helpers.check.limit import TooLong
from helpers.check.traffic import ByMessages
from helpers.check.verdict import own_frames

NO_SANDBOX = (
    "There is no sandbox on this machine: {} Install bubblewrap (apt install bubblewrap), or grade "
    "submissions that you trust with --trust: their code then runs as you."
)
NAMES_ALONE = "grading runs only the imports, functions, classes and constants of a notebook"


@dataclass(frozen=True, kw_only=True)
class How:
    """How to grade.

    Attributes:
        trusted: without a sandbox, run the code as you.
        secret: the inputs are drawn from it; None: the inputs of the student's own checks.
        limits: of a sandbox; None: the usual ones.
    """

    trusted: bool = False
    secret: int | None = None
    limits: Limits | None = None


def grade_all(folder: Path, how: How, jobs: int = 1) -> Iterator[Grade]:
    """Grade every notebook below the folder, and yield the rows in order, as they come."""
    tasks = found_in(folder, exercises())
    one = functools.partial(graded, how=how)
    if jobs == 1:
        yield from map(one, tasks)
        return
    # processes, because checks use PyTorch's global random numbers; fresh ones, as it has threads
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(one, tasks)


def graded(task: Task, how: How) -> Grade:
    """Return the row of one exercise."""
    if task.row:
        return task.row
    began = time.monotonic()
    passed, finding = verdict(task, how)
    seconds = round(time.monotonic() - began, 1)
    return Grade(
        submission=task.submission,
        exercise=task.exercise,
        passed=passed,
        finding=finding,
        seconds=seconds,
    )


def verdict(task: Task, how: How) -> tuple[str, str]:
    """Run the course's check of the function in a fresh sandbox. Return whether it passed, and why
    not."""
    try:
        with hidden.drawn_from(how.secret), Sandbox(how.limits, how.trusted) as sandbox:
            judge = getattr(check, task.exercise)
            alone = isinstance(inspect.unwrap(judge), ByMessages)
            shut = stand_in.Shut(sandbox, task.exercise, task.sources, alone)
            with elsewhere.at(shut):
                found = judge(stand_in.StandIn(task.exercise))
    except NotStarted as error:
        return "not graded", str(error)
    except elsewhere.Failed as error:
        return "no", own_frames(str(error))
    except TooLong:
        return "no", "your function has not returned in time"
    except Exception as error:  # a result of a shape that the check does not expect
        return "no", f"the check could not use the result: {type(error).__name__}: {error}"
    if found:
        return "yes", ""
    finding = own_frames(found.finding) or found.status
    finding += f"\n({NAMES_ALONE})" if "NameError" in finding else ""
    return "no", finding + (f"\nHint: {found.hint}" if found.hint else "")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="make grade", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="the submissions")
    parser.add_argument("--to", type=Path, help="the table; by default grades.csv in the folder")
    parser.add_argument("--weights", type=Path, help="of exercises, in lines: name,weight")
    parser.add_argument("--jobs", type=int, default=1, help="sandboxes at the same time")
    parser.add_argument("--secret", type=int, help="draw the inputs as an earlier run did")
    parser.add_argument("--trust", action="store_true", help="run without a sandbox, as you")
    options = parser.parse_args(argv)
    folder = options.folder
    if not folder.is_dir():
        sys.exit(f"there is no folder {folder}: make grade SUBMISSIONS=folder")
    if bubblewrap() is None and not options.trust:
        sys.exit(NO_SANDBOX.format(why_not()))
    try:
        weights = read_weights(options.weights) if options.weights else {}
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read the weights: {error}")
    secret = secrets.randbits(128) if options.secret is None else options.secret
    how = How(trusted=options.trust, secret=secret)
    rows, began = [], time.monotonic()
    table = options.to or folder / "grades.csv"
    try:
        try:
            for row in write(table, grade_all(folder, how, max(1, options.jobs))):
                print(row, flush=True)
                rows.append(row)
        except KeyboardInterrupt:
            print("stopped: the table has the rows so far")
        write_scores(table.parent, scores(rows, weights))
    except OSError as error:
        sys.exit(f"cannot write {error.filename or table}: {error.strerror}")
    print(summary(rows, ignored(folder, table), time.monotonic() - began))
    print(f"inputs of this run: --secret {secret}\ntable: {table}, with scores.csv and feedback/")


if __name__ == "__main__":
    main()

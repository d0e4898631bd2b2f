"""Run a student's function in this process and return a Verdict, also when the function fails."""

import copy
import traceback
from collections.abc import Callable
from types import TracebackType

from helpers.check import elsewhere
from helpers.check.limit import TooLong
from helpers.check.oracle import NotRight, own_frames
from helpers.check.usable import in_a_line, oddity, short
from helpers.check.verdict import Verdict
from helpers.runtime.stacks import with_cell_names

MOST_FRAMES = 8  # an endless recursion has thousands


def examine_here(exercise: str, fn: Callable, cases, judge: Callable) -> Verdict:
    """Call the function for every case and stop at the first wrong result.

    Args:
        exercise: the name of the exercise, for the Verdict.
        fn: the student's function.
        cases: `(where, arguments, facts)` for each call: words for the finding, the function's
            arguments (it gets copies, so it may write into them), and facts for the judge.
        judge: `judge(answer, *arguments, **facts)` raises NotRight if the answer is wrong.
    """
    for where, arguments, facts in cases:
        try:
            answer = elsewhere.place().call(fn, copy.deepcopy(arguments))
        except NotImplementedError:
            return Verdict(exercise, "not written yet")
        except TooLong:
            finding = f"{where}: your function has not returned after {elsewhere.SECONDS:.0f} s"
            return Verdict(exercise, "wrong", finding, "Is there a loop that does not end?")
        except elsewhere.Failed as failed:
            return Verdict(exercise, "wrong", f"{where}: {failed}")
        except (Exception, SystemExit) as error:
            return Verdict(exercise, "wrong", f"{where}: {what_was_raised(error)}")
        if odd := oddity(answer):
            return Verdict(exercise, "wrong", f"{where}: returned {odd}")
        try:
            judge(answer, *arguments, **facts)
        except NotRight as wrong:
            return Verdict(exercise, "wrong", f"{where}: {wrong.finding}", wrong.hint)
        except Exception as error:  # an answer that nobody thought of
            return Verdict(exercise, "wrong", f"{where}: {unusable(answer, error)}")
    return Verdict(exercise, "passed")


def unusable(answer, error: Exception) -> str:
    """Describe an answer at which the check itself failed."""
    return f"the check cannot compare what you returned, {short(answer)} ({in_a_line(error)})"


def what_was_raised(error: BaseException) -> str:
    """Describe the error, with the student's lines that led to it."""
    raised = "".join(traceback.format_exception_only(error)).strip()
    frames = with_cell_names("".join(traceback.format_list(last_frames(error.__traceback__))))
    return f"your function raised {raised}\n{own_frames(frames)}".rstrip()


def last_frames(trace: TracebackType | None) -> list:
    """The last frames of the student's code, without the calls of this folder."""
    return traceback.extract_tb(trace)[2:][-MOST_FRAMES:]

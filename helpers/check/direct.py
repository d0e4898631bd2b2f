"""Run a student's function in this process and return a Verdict, also when the function fails."""

import copy
from collections.abc import Callable

from helpers.check import elsewhere
from helpers.check.answers import in_a_line, oddity, short
from helpers.check.limit import TooLong
from helpers.check.verdict import NotRight, Verdict, what_was_raised


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

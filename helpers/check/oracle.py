"""Run a student's function on ranks and return a Verdict, also when the function fails or hangs."""

import re
from collections.abc import Callable

from helpers.check import elsewhere, hidden
from helpers.check.answers import in_a_line, is_number  # noqa: F401
from helpers.check.limit import TooLong
from helpers.check.verdict import FRAME, NotRight, Verdict, own_frames  # noqa: F401
from helpers.runtime.failure import WorkerError
from helpers.runtime.payload import CannotTravel
from helpers.runtime.runs import Runs

TIMEOUT = 10.0  # seconds without a sign of life; an exercise needs far less
HANG_HINT = (
    "A rank waits for a message or a collective that another rank never calls. "
    "Does every rank make the same calls, in the same order, with tensors of the same size?"
)


def examine(
    exercise: str,
    fn: Callable,
    cases,
    run: Callable,
    judge: Callable,
    hint_failure: Callable[[str], str] | None = None,
    patience: float = 1.0,
) -> Verdict:
    """Run every case on ranks and stop at the first wrong result.

    Args:
        exercise: the name of the exercise, for the Verdict.
        fn: the student's function.
        cases: `(workers, kwargs)` for each run.
        run: `run(worker, solve, **kwargs)`; each rank calls it with the function as `solve`.
        judge: `judge(runs, **kwargs)` raises NotRight if a result is wrong.
        hint_failure: from the error text of a failed or hanging rank to a hint, or to "".
        patience: how many times TIMEOUT a rank may be silent. On a busy machine, the first model on
            the device "meta" makes PyTorch import for seconds.
    """
    for workers, kwargs in cases:
        where = f"with {workers} rank{'s' * (workers > 1)}"
        try:
            judged(judge, attempt(run, workers, fn, kwargs, patience * TIMEOUT), kwargs)
        except NotRight as wrong:
            return Verdict(exercise, "wrong", f"{where}: {wrong.finding}", wrong.hint)
        except CannotTravel as error:
            return Verdict(exercise, "wrong", str(error))
        except NotImplementedError:  # raised elsewhere
            return Verdict(exercise, "not written yet")
        except (elsewhere.Failed, TooLong) as failed:
            finding = str(failed) or "your function has not returned in time"
            return Verdict(exercise, "wrong", f"{where}: {finding}")
        except WorkerError as error:
            if isinstance(error.__cause__, NotImplementedError):
                return Verdict(exercise, "not written yet")
            said = str(error)
            if error.kind == "hang":  # a student calls no launch here
                said = said.removesuffix(error.note).rstrip()
            finding = f"{where}: {own_frames(said)}"
            hint = hint_failure(finding) if hint_failure else ""
            return Verdict(
                exercise, "wrong", finding, hint or (HANG_HINT if error.kind == "hang" else "")
            )
    return Verdict(exercise, "passed")


def attempt(run: Callable, workers: int, fn: Callable, kwargs, timeout: float) -> Runs:
    """Run one case. Run it once more if the machine was too busy to start it in time."""
    run = hidden.carried(run)
    try:
        return elsewhere.place().launch(run, workers, fn, kwargs, timeout)
    except WorkerError as error:
        if not started_too_slowly(str(error)):
            raise
    return elsewhere.place().launch(run, workers, fn, kwargs, timeout)


def judged(judge: Callable, runs: Runs, kwargs):
    """Judge; where the judge itself fails at an answer that nobody thought of, that is wrong."""
    try:
        judge(runs, **kwargs)
    except NotRight:
        raise
    except Exception as error:
        finding = f"the check cannot compare what your function returned ({in_a_line(error)})"
        raise NotRight(finding) from error


def started_too_slowly(finding: str) -> bool:
    """Whether no rank reached the student's function, because the machine was busy."""
    ranks = re.findall(r"^rank \d+ was (.*)", finding, re.M)
    return bool(ranks) and all(doing == "not answering" for doing in ranks)

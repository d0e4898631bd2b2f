"""Run a student's function on ranks, and turn whatever happens into a Verdict."""

from collections.abc import Callable

from helpers.check.verdict import Verdict
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.payload import CannotTravel
from helpers.runtime.runs import Runs

PATIENCE = 10.0  # seconds without a sign of life: an exercise is small
HANG_HINT = (
    "Some rank waits for a message or a collective that another never makes. "
    "Does every rank make the same calls, in the same order?"
)


class NotRight(Exception):
    """Raised by a judge: what came out, and a hint."""

    def __init__(self, finding: str, hint: str = ""):
        super().__init__(finding)
        self.finding, self.hint = finding, hint


def examine(exercise: str, fn: Callable, cases, run: Callable, judge: Callable) -> Verdict:
    """Run every case on ranks and stop at the first that is not right.

    Args:
        exercise: its name, for the Verdict.
        fn: the student's function.
        cases: `(workers, kwargs)` for each run.
        run: `run(worker, solve, **kwargs)`, what each rank does with the function.
        judge: `judge(runs, **kwargs)` raises NotRight.
    """
    for workers, kwargs in cases:
        where = f"with {workers} rank{'s' * (workers > 1)}"
        try:
            runs: Runs = launch(run, workers, device="cpu", timeout=PATIENCE, solve=fn, **kwargs)
            judge(runs, **kwargs)
        except NotRight as wrong:
            return Verdict(exercise, "wrong", f"{where}: {wrong.finding}", wrong.hint)
        except CannotTravel as error:
            return Verdict(exercise, "wrong", str(error))
        except WorkerError as error:
            if isinstance(error.__cause__, NotImplementedError):
                return Verdict(exercise, "not written yet")
            hint = HANG_HINT if error.kind == "hang" else ""
            return Verdict(exercise, "wrong", f"{where}: {error}", hint)
    return Verdict(exercise, "passed")

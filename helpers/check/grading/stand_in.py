"""The judge's stand-in for a submitted function, and the place that asks the sandbox to call it."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch

from helpers.check.elsewhere import SECONDS, Failed, place
from helpers.check.grading import plain
from helpers.check.grading.inside import submitted
from helpers.check.grading.sandbox import Broken, Late, Sandbox
from helpers.check.limit import TooLong
from helpers.runtime.failure import WorkerError
from helpers.runtime.runs import Runs

DEFINE_SECONDS = 180.0  # for a notebook's imports, on a busy machine
RANK_SECONDS = 180.0  # for a case on ranks, on a busy machine
PATIENCE = 3.0  # times the student's own limit on silence: nobody waits, and others run beside


class StandIn:
    """The submitted function, for the judge. In the sandbox it becomes the function itself."""

    def __init__(self, name: str):
        self.__name__ = name

    def __reduce__(self):
        return submitted, (self.__name__,)

    def __deepcopy__(self, memo):
        return self

    def __call__(self, *arguments):
        return place().call(self, arguments)


class Shut:
    """A place in the sandbox, for `helpers.check.elsewhere`.

    Args:
        sandbox: a running one.
        name: of the exercise.
        sources: the notebook's definitions.

    Raises:
        Failed: the notebook does not define the function, or its definitions do not end.
    """

    def __init__(self, sandbox: Sandbox, name: str, sources: Sequence[str]):
        self.sandbox = sandbox
        try:
            self.ask("define", (name, list(sources)), DEFINE_SECONDS)
        except TooLong:
            raise Failed(f"the definitions have not ended after {DEFINE_SECONDS:.0f} s") from None
        except WorkerError as error:
            raise Failed(str(error)) from None

    def call(self, fn: Callable, arguments: tuple) -> Any:
        """Return the sandbox's answer; the arguments get what the function wrote into them."""
        answer, after = self.ask("call", (fn, arguments), SECONDS)
        restore(arguments, after)
        return answer

    def launch(self, run, workers, fn, kwargs, timeout) -> Runs:
        timeout = min(PATIENCE * timeout, 0.8 * RANK_SECONDS)
        results, _ = self.ask("ranks", (run, workers, fn, kwargs, timeout), RANK_SECONDS)
        if not isinstance(results, list) or len(results) != workers:
            raise Failed("the ranks' results are not one for each rank")
        return Runs(results, [], "cpu", "gloo", 0.0)

    def ask(self, kind: str, given: tuple, seconds: float):
        """Send an order, and return what the function returned.

        Raises:
            NotImplementedError, TooLong, WorkerError: as in the student's own kernel.
            Failed: any other failure.
        """
        order = by_value(lambda: cloudpickle.dumps((kind, given)))
        try:
            found = plain.unpack(self.sandbox.ask(order, seconds))
        except Late as error:
            if "in all" in str(error):
                raise Failed(f"your function has {error}") from None
            raise TooLong from None
        except Broken as error:
            raise Failed(f"your function has {error}") from None
        except ValueError as error:
            raise Failed(f"the answer is not what the exercise asks for ({error})") from None
        match found:
            case ["returned", None] if kind == "define":
                return None
            case ["returned", (answer, after)] if kind != "define":
                return answer, after
            case ["not written"]:
                raise NotImplementedError
            case ["raised", str(how), str(text)] if how in ("exception", "answer"):
                raise Failed(text)
            case ["raised", str(how), str(text)]:
                raise WorkerError(text, kind=how)
        raise Failed("the answer has no form that the judge knows")


def by_value(dumps: Callable[[], bytes]) -> bytes:
    """Pickle with the exercises' checks by value: the sandbox does not have these files."""
    loaded = list(sys.modules.items())
    modules = [module for name, module in loaded if name.startswith("helpers.check.week")]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return dumps()
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def restore(given, after):
    """Write what the function left in its arguments into this process's own."""
    if isinstance(given, torch.Tensor) and isinstance(after, torch.Tensor):
        if given.shape == after.shape and given.dtype == after.dtype:
            given.data.copy_(after.data)
    elif isinstance(given, np.ndarray) and isinstance(after, np.ndarray):
        if given.shape == after.shape and given.dtype == after.dtype:
            given[...] = after
    elif isinstance(given, list) and isinstance(after, list):
        for mine, theirs in zip(given, after, strict=False):
            restore(mine, theirs)
        if len(given) != len(after):
            given[:] = after
    elif isinstance(given, tuple) and isinstance(after, tuple):
        for mine, theirs in zip(given, after, strict=False):
            restore(mine, theirs)
    elif isinstance(given, dict) and isinstance(after, dict):
        for key in given.keys() & after.keys():
            restore(given[key], after[key])

"""The judge's stand-in for a submitted function, and the place that asks the sandbox to call it."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch

from helpers.check.elsewhere import SECONDS, Failed, place
from helpers.check.grading import frames, plain
from helpers.check.grading.inside import submitted
from helpers.check.grading.post import Stopped, carry, ranks_of
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
        alone: this process never runs them, but ranks that have nothing in common: `messages`.

    Raises:
        Failed: the notebook does not define the function, or its definitions do not end.
    """

    def __init__(self, sandbox: Sandbox, name: str, sources: Sequence[str], alone: bool = False):
        self.sandbox, self.definitions, self.defined = sandbox, (name, list(sources)), []
        if alone:
            return
        try:
            self.ask("define", self.definitions, DEFINE_SECONDS)
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

    def messages(self, run, fn: Callable, arguments: Sequence[tuple], timeout: float) -> Runs:
        """Return the results of run(worker, fn, arguments of this rank), on ranks that can send and
        receive, and nothing else. Facets of each are what the judge has seen: its messages,
        "calls", and how many of them it has not waited for, "unwaited"."""
        boxes = ranks_of(self.sandbox, len(arguments))
        new = [box for box in boxes if box not in self.defined]
        defining = [self.definitions] * len(new)
        self.carried(new, "define", defining, DEFINE_SECONDS, DEFINE_SECONDS)
        self.defined += new
        orders = [(run, fn, one, rank, len(boxes)) for rank, one in enumerate(arguments)]
        seconds = min(RANK_SECONDS, self.sandbox.last - time.monotonic())
        every = self.carried(boxes, "rank", orders, seconds, PATIENCE * timeout)
        if not all(isinstance(found, dict) for found, *_ in every):
            raise Failed("the ranks' results have no form that the judge knows")
        traces = [{**found, "calls": calls, "unwaited": left} for found, calls, left in every]
        return Runs(traces, [], "cpu", "messages", 0.0)

    def carried(self, boxes, kind: str, given: Sequence[tuple], seconds: float, silence: float):
        """Give each sandbox its order. Return for each what it returned, and what `carry` has seen.

        Raises:
            NotImplementedError, Failed: as `ask`.
        """
        orders = [by_value(lambda one=one: cloudpickle.dumps((kind, one))) for one in given]
        try:
            answers, *seen = carry(boxes, orders, seconds, silence)
            found = [result(["returned", *one], kind)[0] for one in answers]
            return list(zip(found, *seen, strict=True))
        except Stopped as stopped:
            rank, found = stopped.args
            self.sandbox.end()
            try:
                result(found, kind)
            except (Failed, WorkerError) as error:
                raise Failed(f"rank {rank}: {error}") from None
        except (Late, frames.Silence) as error:
            self.sandbox.end()
            if time.monotonic() > self.sandbox.last:
                seconds = self.sandbox.limits.seconds
                raise Failed(f"your function has taken more than {seconds:.0f} s in all") from None
            raise Failed(f"no rank makes progress: {error}") from None
        except (Broken, ValueError) as error:
            self.sandbox.end()
            raise Failed(f"on one rank, your function has {error}") from None

    def ask(self, kind: str, given: tuple, seconds: float):
        """Send an order, and return what the function returned.

        Raises:
            NotImplementedError, TooLong, WorkerError: as in the student's own kernel.
            Failed: any other failure.
        """
        order = by_value(lambda: cloudpickle.dumps((kind, given)))
        try:
            return result(plain.unpack(self.sandbox.ask(order, seconds)), kind)
        except Late as error:
            if "in all" in str(error):
                raise Failed(f"your function has {error}") from None
            raise TooLong from None
        except Broken as error:
            raise Failed(f"your function has {error}") from None
        except ValueError as error:
            raise Failed(f"the answer is not what the exercise asks for ({error})") from None


def result(found, kind: str):
    """Return what the sandbox's answer to an order of this kind says: the result, and the arguments
    afterwards; or raise what it says."""
    match found:
        case ["returned", None] if kind == "define":
            return None, None
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

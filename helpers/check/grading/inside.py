"""The program in the sandbox: it defines a submitted function, and calls it when asked.

Orders are pickles of the judge, which is trusted here. Answers are plain data. Nothing that the
submitted code prints reaches the judge.
"""

import linecache
import os
import pickle
import re
import resource
import socket
import sys
import traceback

import torch

from helpers.check.grading import apart, frames, messages, plain
from helpers.check.verdict import MOST_FRAMES, own_frames
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.payload import CannotTravel
from helpers.runtime.worker import Worker

MOST_TEXT = 4000  # characters of an error
TYPE = re.compile(r" is of type (?:builtins\.)?(\S+) and cannot travel")

_submitted: dict[str, object] = {}
_place: dict[str, object] = {}  # "control": a socket of the judge; "post": this rank's


def submitted(name: str):
    """Return the submitted function. The judge's stand-in becomes it on its way here."""
    return _submitted[name]


def define(name: str, sources: list[str]) -> None:
    """Run the notebook's definitions. One that fails is left out. Tracebacks show their lines.

    Raises:
        NameError: none of them defines the function.
    """
    names = {"__name__": "__main__"}
    why = ""
    for number, source in enumerate(sources):
        file = f"<notebook {number}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        try:
            exec(compile(source, file, "exec"), names)
        except BaseException as error:
            why = f"; {type(error).__name__}: {error}"
    if not callable(names.get(name)):
        raise NameError(f"the notebook defines no function {name}{why}")
    _submitted[name] = names[name]


def call(fn, arguments):
    """Return the answer, and the arguments, into which the function may have written."""
    answer = fn(*arguments)
    return answer, plain.numbers_of(arguments)


def on_ranks(run, workers, fn, kwargs, timeout):
    runs = launch(run, workers, device="cpu", timeout=timeout, solve=fn, **kwargs)
    return list(runs), None


def on_rank(run, fn, arguments, rank, ranks):
    """Be one rank, whose messages pass through the judge. Other ranks have a sandbox each."""
    with messages.joined(_place["post"], rank, ranks):
        return run(Worker(rank, ranks, torch.device("cpu"), None), fn, arguments), None


def fork(number):
    """Start so many ranks that have nothing in common; return whether that is possible here."""
    return apart.fork(_place["control"], number, lambda file: serve(file, file)), None


ORDERS = {"define": define, "call": call, "ranks": on_ranks, "fork": fork, "rank": on_rank}


def answer(order: bytes) -> bytes:
    """Carry out an order. The answer begins with "returned", "not written" or "raised"."""
    if not order:
        return plain.pack(["ready"])
    try:
        kind, given = pickle.loads(order)
        return plain.pack(["returned", ORDERS[kind](*given)], "your function's result")
    except NotImplementedError:
        return plain.pack(["not written"])
    except CannotTravel as error:
        return plain.pack(["raised", "answer", no_data(str(error))[:MOST_TEXT]])
    except WorkerError as error:
        if isinstance(error.__cause__, NotImplementedError):
            return plain.pack(["not written"])
        return plain.pack(["raised", error.kind, str(error)[:MOST_TEXT]])
    except BaseException as error:  # SystemExit, too
        text = "".join(traceback.format_exception_only(error)).strip()
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:])
        text = f"your function raised {text}\n{own_frames(''.join(frames))}"
        return plain.pack(["raised", "exception", text[:MOST_TEXT].rstrip()])


def no_data(error: str) -> str:
    """Say what the function returned, if that is no data."""
    kind = TYPE.search(error)
    what = f"a value of type {kind[1]}, or with a part of it" if kind else error
    return f"your function returned {what}: this is not what the exercise asks for"


def keep_small(file_bytes: int):
    """Limit the size of a file, here and in every process that starts from here, for good."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(file_bytes: int, control: int):
    keep_small(file_bytes)
    orders, answers = os.dup(0), os.dup(1)
    _place["control"] = socket.socket(fileno=control)
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nothing, file)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    serve(orders, answers)


def serve(orders: int, answers: int):
    """Answer orders until no more can come."""
    _place["post"] = messages.Post(orders, answers)
    while True:
        try:
            order = frames.read(orders)
        except frames.Ended:
            return
        frames.write(answers, answer(order))


if __name__ == "__main__":
    # The judge's pickles name helpers.check.grading.inside: this module, and not __main__.
    from helpers.check.grading import inside

    inside.main(*map(int, sys.argv[1:]))

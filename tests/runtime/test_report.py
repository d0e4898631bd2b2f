"""An exception as data: its kind, its text and its traceback; itself, if it can travel."""

import os
import pickle
import threading

from helpers.runtime import report
from helpers.runtime.report import LONGEST, describe, shortened


def fails(error):
    raise error


def caught(error) -> BaseException:
    try:
        fails(error)
    except BaseException as raised:
        return raised


def test_a_plain_error():
    error = caught(KeyError("missing"))
    found = describe(error)
    assert (found["kind"], found["message"]) == ("KeyError", "'missing'")
    assert "in caught" in found["traceback"]
    assert "in fails" in found["traceback"]
    back = pickle.loads(found["exception"])
    assert (type(back), back.args) == (KeyError, ("missing",))
    assert found["when"] <= describe(error)["when"]


def test_the_first_frames_of_the_caller_are_left_out():
    """All of them, and no later frame: here every frame is of this file."""
    assert "File" not in describe(caught(KeyError()), skip=__file__)["traceback"]
    assert "in fails" in describe(caught(KeyError()), skip="another.py")["traceback"]


def test_a_long_text_keeps_its_beginning_and_its_end():
    text = "begin" + "x" * 3 * LONGEST + "end"
    short = shortened(text)
    assert short.startswith("beginx")
    assert short.endswith("xend")
    assert f"[… {len(text) - LONGEST:,} more characters …]" in short
    assert shortened("y" * LONGEST) == "y" * LONGEST


class Odd(Exception):
    """Pickles, but cannot be rebuilt from its arguments; and has no text."""

    def __init__(self, one, two):
        super().__init__(one)

    def __str__(self):
        raise ValueError


def test_an_error_that_cannot_travel_is_described_all_the_same():
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc") else 0
    for error in (Odd(1, 2), KeyError(threading.Lock()), ValueError("x" * 200_000)):
        assert describe(caught(error))["exception"] is None
    assert "__str__ fails" in report.text(Odd(1, 2))
    for error in (ValueError("x" * 200_000), ExceptionGroup("many", [KeyError("k" * 20_000)])):
        found = describe(caught(error))
        assert max(len(found["message"]), len(found["traceback"])) < LONGEST + 100
    if before:
        assert len(os.listdir("/proc/self/fd")) == before

"""An exception as data: how a rank tells of it."""

import time
import traceback

from helpers.runtime.blame import pack_or_name
from helpers.runtime.payload import unpack

LONGEST = 10_000  # characters of a message, and of a traceback


def describe(error: BaseException, skip: str = "") -> dict:
    """The exception as the notebook shows it, and itself where it can travel.

    Args:
        skip: a file whose frames the traceback need not begin with: the caller's own.
    """
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == skip:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return {
        "kind": type(error).__name__,
        "message": shortened(text(error)),
        "traceback": shortened("".join(lines)),
        "when": time.monotonic(),
        "exception": portable(error),
    }


def shortened(text: str) -> str:
    """Its beginning and its end, where it is longer than anybody reads."""
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[… {left_out:,} more characters …]\n{text[-half:]}"


def text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the student's own __str__
        return "(its text cannot be had: __str__ fails)"


def portable(error: BaseException) -> bytes | None:
    """The pickled exception, if it survives the journey (a custom `__init__` may not)."""
    try:
        parcel = pack_or_name(error.with_traceback(None), {}, "back to the notebook")
        if parcel.fd is None:
            unpack(parcel)
            return parcel.pickled
        parcel.close()
    except Exception:
        pass
    return None

"""Describe an exception as data, so that a rank can send it to the notebook."""

import time
import traceback

from helpers.runtime.blame import pack_or_name
from helpers.runtime.payload import unpack

LONGEST = 10_000  # characters of a message, and of a traceback


def describe(error: BaseException, skip: str = "") -> dict:
    """Return the exception as the notebook shows it, and the exception itself if it can travel.

    Args:
        skip: the caller's own file; the traceback leaves out its first frames.
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
    """Keep the beginning and the end of a text that is too long to read."""
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[… {left_out:,} more characters …]\n{text[-half:]}"


def text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the student's own __str__
        return "(no text: the exception's own __str__ fails)"


def portable(error: BaseException) -> bytes | None:
    """Pickle the exception; None if it cannot be rebuilt (a custom `__init__` may prevent that)."""
    try:
        parcel = pack_or_name(error.with_traceback(None), {}, "back to the notebook")
        if parcel.fd is None:
            unpack(parcel)
            return parcel.pickled
        parcel.close()
    except Exception:
        pass
    return None

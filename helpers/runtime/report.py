"""An exception as data: how a rank tells of it."""

import time
import traceback

from helpers.runtime.blame import pack_or_name
from helpers.runtime.payload import unpack


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
        "message": text(error),
        "traceback": "".join(lines),
        "when": time.monotonic(),
        "exception": portable(error),
    }


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

"""Show the progress of a fit in one line, which is overwritten, and erased at the end."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DRAW_SECONDS = 0.25


@contextmanager
def shown(what: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number done; it writes to standard error if `show`."""
    last, width = time.monotonic(), 0

    def tick(done: int):
        nonlocal last, width
        now = time.monotonic()
        if show and now - last >= DRAW_SECONDS:
            line = f"{done:,} of {total:,} {what}"
            sys.stderr.write("\r" + line.ljust(width))
            sys.stderr.flush()
            last, width = now, len(line)

    try:
        yield tick
    finally:
        if width:
            sys.stderr.write("\r" + " " * width + "\r")
            sys.stderr.flush()

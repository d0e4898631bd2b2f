"""How much memory the system has given to this process."""

import resource
import sys
from pathlib import Path

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the bytes of this process in physical memory, libraries included.

    On Linux it is the present number. Elsewhere it is the largest so far, so it never falls.
    """
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

"""Notice files that have changed on disk since this rank imported them."""

import os
import sys
from itertools import takewhile

STANDARD = os.path.dirname(os.__file__)
INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"


class SourceFiles:
    """The source files of this rank's modules, and their state at the first look.

    Files of Python and of installed packages are left out: nobody edits them while ranks live.
    """

    def __init__(self):
        self.seen: dict[str, tuple[int, int] | None] = {}
        self.last = next(reversed(sys.modules))  # modules before the first call are the runtime's

    def look(self):
        """Remember the state of the files of newly imported modules."""
        new = list(takewhile(lambda name: name != self.last, reversed(sys.modules)))
        self.last = next(reversed(sys.modules))
        for name in new:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and not installed(file):
                self.seen[file] = state_of(file)

    def changed(self) -> list[str]:
        """Return the files that have changed; each change is reported once."""
        found = []
        for file, state in self.seen.items():
            if (now := state_of(file)) not in (None, state):
                self.seen[file] = now
                found.append(file)
        return found


def installed(file: str) -> bool:
    return file.startswith(STANDARD) or any(folder in file for folder in INSTALLED)


def state_of(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size

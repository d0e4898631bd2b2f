"""Notice files that have changed on disk since a process imported them."""

import os
import sys
from itertools import takewhile

STANDARD = os.path.dirname(os.__file__)
INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"


class SourceFiles:
    """The source files of this process's modules, and their state at the first look.

    Files of Python and of installed packages are left out: nobody edits them meanwhile.

    Args:
        every: look at all modules, not only at those that are imported from now on.
    """

    def __init__(self, every: bool = False):
        self.seen: dict[str, tuple[int, int] | None] = {}
        self.specs: dict[str, tuple[str, object]] = {}  # the module's name and spec, by file
        self.last = None if every else next(reversed(sys.modules.items()))

    def look(self, *_):
        """Remember the state of the files of newly imported modules."""
        new = self.new_modules()
        self.last = new[0] if new else self.last
        for name, module in new:
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and not installed(file):
                self.seen[file], self.specs[file] = state_of(file), (name, spec_of(name))

    def new_modules(self) -> list[tuple[str, object]]:
        """The modules imported since the last look, the newest first.

        It touches no other: that would copy 3 MB of the pages which a rank shares.
        """
        while True:
            try:
                return list(takewhile(lambda one: one != self.last, reversed(sys.modules.items())))
            except RuntimeError:  # another thread has imported meanwhile
                continue

    def changed(self) -> list[str]:
        """Return the files that have changed; each change is reported once."""
        found = []
        for file, state in self.seen.copy().items():  # in one step: another thread may look
            if (now := state_of(file)) not in (None, state):
                name, spec = self.specs[file]
                self.seen[file], self.specs[file] = now, (name, spec_of(name))
                if spec_of(name) is spec:  # importlib.reload would have made another
                    found.append(file)
        return found


def spec_of(name: str):
    return getattr(sys.modules.get(name), "__spec__", None)


def installed(file: str) -> bool:
    return file.startswith(STANDARD) or any(folder in file for folder in INSTALLED)


def state_of(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


HERE = SourceFiles(every=True)  # of the process that calls `launch`

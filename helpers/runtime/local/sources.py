"""Has a file changed on disk since this rank imported it?"""

import os
import site
import sys
import sysconfig

INSTALLED = (sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages())


class SourceFiles:
    """The files that this rank's modules were read from, as they were when it first saw them.

    Those of Python and of installed packages are left out: nobody edits them while ranks live.
    """

    def __init__(self):
        self.seen: dict[str, tuple[int, int] | None] = {}
        self.modules = set(sys.modules)  # what came before the first call is the runtime itself

    def look(self):
        """Remember how the files of newly imported modules are."""
        for name in sys.modules.keys() - self.modules:
            self.modules.add(name)
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and not file.startswith(INSTALLED):
                self.seen[file] = state_of(file)

    def changed(self) -> list[str]:
        """The files that are not as they were; each change is told once."""
        found = []
        for file, state in self.seen.items():
            if (now := state_of(file)) not in (None, state):
                self.seen[file] = now
                found.append(file)
        return found


def state_of(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size

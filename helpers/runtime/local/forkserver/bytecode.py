"""Keep the compiled sources of `helpers` where Python itself keeps none, for the next ranks.

Each call's ranks import `helpers` anew. Python keeps the compiled sources beside them, but not with
PYTHONDONTWRITEBYTECODE, nor in a clone that this user cannot write to. Then each rank would compile
what it imports: 20 ms for 1,000 lines.
"""

import os
import sys
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path

from helpers.runtime.course import own_folder

PACKAGE = str(Path(__file__).parents[3])
FOLDER = "HELPERS_BYTECODE"  # environment of the server, for the ranks that it forks


def environ() -> dict[str, str]:
    """Return the server's variable if Python keeps no compiled sources of this package."""
    keeps = not sys.dont_write_bytecode and os.access(PACKAGE, os.W_OK)
    folder = None if keeps else own_folder()
    return {FOLDER: os.path.join(folder, "bytecode")} if folder else {}


class Loader(SourceFileLoader):
    """Python's own loader, with another folder. It compares a source's time and size, too."""

    folder = os.environ.get(FOLDER)  # a rank gets the notebook's variables later

    def get_code(self, name):
        before = sys.pycache_prefix, sys.dont_write_bytecode
        sys.pycache_prefix, sys.dont_write_bytecode = self.folder, False
        try:
            return super().get_code(name)
        finally:
            sys.pycache_prefix, sys.dont_write_bytecode = before


def hook(path: str) -> FileFinder:
    if path != PACKAGE and not path.startswith(PACKAGE + os.sep):
        raise ImportError(f"{path} is not in this package")
    return FileFinder(path, (Loader, [".py"]))


def use():
    """Import this package's files by `Loader` from now on, if the server's variable is set."""
    if Loader.folder:
        sys.path_hooks.insert(0, hook)
        sys.path_importer_cache.clear()

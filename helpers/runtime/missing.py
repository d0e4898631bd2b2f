"""Say in one line which library to install if an import in this package fails."""

import os
import sys

from helpers.runtime.course import ROOT

OWN = os.path.join(ROOT, "helpers", "")
DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # where pip's name is not that of the module


class MissingLibrary(ModuleNotFoundError):
    """A library that the course uses is not installed."""

    def __init__(self, name: str):
        pip = "%pip" if "ipykernel" in sys.modules else "pip"
        words = f"{name} is not installed in this Python. Run `{pip} install "
        words += f"{DISTRIBUTIONS.get(name, name)}`"
        if (ROOT / "pyproject.toml").is_file():
            words += f', or `{pip} install "{ROOT}[dev]"` for all libraries of the course'
        super().__init__(f"{words}.", name=name)

    def __reduce__(self):  # a rank may send it to the notebook
        return MissingLibrary, (self.name,)

    def _render_traceback_(self):
        """In a notebook, show the line alone: the frames of this package help nobody."""
        return [f"MissingLibrary: {self}"]


class LastFinder:
    """The last finder of an import: all others have found nothing.

    It raises only for an import statement in a file of this package. Other code asks for libraries
    that it can do without.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and _asks().startswith(OWN):
            raise MissingLibrary(name)


def _asks() -> str:
    """Return the file with the import statement that runs now."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else ""


def explain_missing():
    """Explain failed imports of this package from now on."""
    if not any(getattr(each, "__name__", "") == LastFinder.__name__ for each in sys.meta_path):
        sys.meta_path.append(LastFinder)

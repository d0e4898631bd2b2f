"""The course in this Python: its files, the variables that it sets, libraries that are missing."""

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from helpers.runtime.private import cache_folder, private_folder

ROOT = Path(__file__).parents[2]  # the folder with `helpers`: a clone, or where pip installs
NOTEBOOKS = ROOT / "notebooks"  # in a clone
OWN = os.path.join(ROOT, "helpers", "")
COMPILER = "TORCHINDUCTOR_CACHE_DIR"
INSTALLED = ("site-packages", "dist-packages")  # where every program of this Python looks
DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # where pip's name is not that of the module


def course_file(name: str) -> Path:
    """Return the path of a file of `notebooks/`, such as "mpi/train_gpt.py".

    The student's own copy comes first: beside the notebook, or in the folder above. Then comes
    the clone that this package is in.

    Raises:
        FileNotFoundError: no folder has the file.
    """
    here = Path.cwd()
    for folder in (here, here.parent, NOTEBOOKS):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"{name} is neither beside this notebook nor in a clone of the course. "
        f"Copy it from the course's notebooks/ into {here}."
    )


def set_defaults(environ: MutableMapping[str, str] = os.environ):
    """Set defaults for this process, its ranks and its programs. Existing values stay.

    `HF_HUB_DISABLE_TELEMETRY=1`: Hugging Face's libraries report nothing about this user.
    `TORCHINDUCTOR_CACHE_DIR`: PyTorch's compiler runs code from its cache. By default that cache is
    in the shared /tmp, under a name that any user can guess and make first. This variable moves it
    to the user's own cache.
    """
    environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if COMPILER not in environ and (folder := own_folder()):
        environ[COMPILER] = os.path.join(folder, "torchinductor")


def share_package(environ: MutableMapping[str, str] = os.environ, root: Path = ROOT):
    """Let programs that this process starts import this package, also where it is not installed.

    A notebook finds the package by `sys.path`, and other processes do not see that list:
    `!torchrun …`, `mpiexec`, `python -m helpers.runtime.alone`. They read `PYTHONPATH`.
    """
    paths = environ.get("PYTHONPATH", "")
    if root.name not in INSTALLED and str(root) not in paths.split(os.pathsep):
        environ["PYTHONPATH"] = f"{root}{os.pathsep}{paths}" if paths else str(root)


def own_folder() -> str | None:
    """Return this user's own cache, else a folder until the program ends; None on a full disk."""
    for find in (cache_folder, private_folder):
        try:
            return os.fspath(find())
        except (OSError, RuntimeError):  # no home, or other users can write to the folder
            pass
    return None


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

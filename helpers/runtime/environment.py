"""Set variables that libraries and other processes read when they start."""

import os
from collections.abc import MutableMapping
from pathlib import Path

from helpers.runtime.course import ROOT
from helpers.runtime.private import cache_folder, private_folder

COMPILER = "TORCHINDUCTOR_CACHE_DIR"
INSTALLED = ("site-packages", "dist-packages")  # where every program of this Python looks


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

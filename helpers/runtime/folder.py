"""A folder that only this user can enter, and that is gone when the notebook is."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_folders: dict[int, Path] = {}  # by process: a fork of the notebook makes its own


def private_folder() -> Path:
    """The folder, made when it is first asked for. OSError: a full disk, say."""
    folder = _folders.get(os.getpid())
    if folder is None or not folder.exists():
        folder = _folders[os.getpid()] = Path(tempfile.mkdtemp(prefix="helpers-"))
        atexit.register(remove, folder, os.getpid())
    return folder


def remove(folder: Path, owner: int):
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)

"""A folder that only this user can reach, removed with the notebook; files without a name."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_folders: dict[int, Path] = {}  # by process: a fork of the notebook makes its own folder


def private_folder() -> Path:
    """Return the folder; the first call makes it. Raises OSError, for example on a full disk."""
    folder = _folders.get(os.getpid())
    if folder is None or not folder.exists():
        folder = _folders[os.getpid()] = Path(tempfile.mkdtemp(prefix="helpers-"))
        atexit.register(remove, folder, os.getpid())
    return folder


def remove(folder: Path, owner: int):
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def anonymous_file() -> int:
    """Return the descriptor of an empty file without a name, in memory if the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("helpers")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def is_own(status: os.stat_result) -> bool:
    """Is this user the only one that can enter the folder?"""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077

"""What nobody else can reach: a folder that is gone with the notebook, files without a name."""

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


def anonymous_file() -> int:
    """The descriptor of an empty file that has no name; in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("helpers")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def is_own(status: os.stat_result) -> bool:
    """Is this user the only one that can enter the folder?"""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077

"""What only this user can change: a check before a file is read, and the folder of caches."""

import os
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "HELPERS_CACHE"
OTHERS_WRITE = 0o022
ROOT = 0  # root can change every file anyway


def check_own(paths: Iterable[str | os.PathLike], remedy: str = ""):
    """Refuse files and folders that other users can change.

    Links are followed: the target counts.

    Args:
        paths: the files and folders.
        remedy: what else the reader can do, for the error.

    Raises:
        PermissionError: another user owns one of them, or can write it.
        OSError: one of them is not there.
    """
    if not hasattr(os, "geteuid"):  # Windows: these bits mean nothing there
        return
    for path in paths:
        status = os.stat(path)
        if status.st_uid not in (os.geteuid(), ROOT):
            raise PermissionError(
                f"{path} belongs to another user, so this user's programs do not read it. "
                f"{remedy or 'Use a file of your own.'}"
            )
        if status.st_mode & OTHERS_WRITE:
            raise PermissionError(
                f"{path} can be written by other users, so this user's programs do not read it. "
                f"If only you have written it: chmod -R go-w {path}"
                f"{'. ' if remedy else ''}{remedy}"
            )


def below(folder: str | os.PathLike) -> Iterable[Path]:
    """The folder and all that is in it, at any depth; links that lead nowhere are left out."""
    yield Path(folder)
    for path, folders, files in os.walk(folder):
        found = (Path(path, name) for name in (*folders, *files))
        yield from (path for path in found if path.exists())


def cache_folder() -> Path:
    """Where computed files are kept: $HELPERS_CACHE, else a folder in the user's own caches.

    The latter is training-at-scale in $XDG_CACHE_HOME or ~/.cache. The first call makes the
    folder, for this user alone.

    Raises:
        PermissionError: another user owns the folder, or can write to it.
        OSError: it cannot be made.
        RuntimeError: this user has no home folder.
    """
    remedy = f"Or set {VARIABLE} to a folder of yours."
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen) if chosen else user_caches() / "training-at-scale"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        error.add_note(f"Set {VARIABLE} to a folder of yours: computed files are kept there.")
        raise
    check_own([folder], remedy)
    return folder


def user_caches() -> Path:
    """$XDG_CACHE_HOME, if it is an absolute path; else ~/.cache."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache"

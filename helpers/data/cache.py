"""Entries of the user's cache: each is computed once, and is there whole or not at all.

An entry is a folder of files. Its name says what it was made from, so an entry never changes. A
process writes it aside and then renames it. Of several processes that make an entry at once, the
first one wins, and the others use its entry.

Other users cannot write an entry: the files are data, but a changed text would change your results.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from helpers.runtime.private import OTHERS_WRITE, VARIABLE, below, cache_folder, check_own


def kept(name: str, write: Callable[[Path], None] | None = None) -> Path | None:
    """Return the folder of this entry; if there is none, make it with `write(folder)`.

    Args:
        name: of the entry.
        write: fills an empty folder. Without it, a missing entry gives None.

    Raises:
        PermissionError: another user owns a file of the entry, or can write it.
        OSError: the entry cannot be written: a full disk, say. Nothing is left of it then.
    """
    folder = cache_folder()
    entry = folder / name
    if entry.is_dir():
        check_own(below(entry), f"Or remove {entry}: the next call computes it again.")
        return entry
    if write is None:
        return None
    aside = make_aside(folder)
    try:
        write(aside)
        close(aside)
        try:
            aside.rename(entry)
        except OSError:
            if not entry.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return entry


def make_aside(folder: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
    except OSError as error:
        error.add_note(f"Set {VARIABLE} to a folder of yours: computed files are kept there.")
        raise


def close(folder: Path):
    """Take from others the right to write: a user's umask may have given it."""
    for path in below(folder):
        path.chmod(os.stat(path).st_mode & 0o777 & ~OTHERS_WRITE)

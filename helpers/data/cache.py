"""A folder of this user's that keeps what was computed once: whole or not at all.

An entry is a folder of files under a name that says what it was made from, and so is never
changed. It is written aside and then renamed: of several processes that make it at once, one is
first, and the others use its.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

VARIABLE = "HELPERS_CACHE"


def cache_folder() -> Path:
    """Where entries are: $HELPERS_CACHE, else training-at-scale in the user's folder of caches.

    Made when it is first asked for, for this user alone.

    Raises:
        PermissionError: it belongs to another user.
        OSError: it cannot be made. The message says how to choose another place.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get(VARIABLE) or Path(caches) / "training-at-scale")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        error.add_note(f"to keep tokens elsewhere, set {VARIABLE} to a folder of yours")
        raise
    if hasattr(os, "geteuid") and owner != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user: set {VARIABLE} to one of yours")
    return folder


def kept(name: str, write: Callable[[Path], None] | None = None) -> Path | None:
    """The entry of this name; when there is none, what `write(folder)` writes, or None.

    Raises:
        OSError: a full disk, say. Nothing is left of the entry then.
    """
    entry = cache_folder() / name
    if entry.is_dir() or write is None:
        return entry if entry.is_dir() else None
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=entry.parent))
    try:
        write(aside)
        try:
            aside.rename(entry)
        except OSError:
            if not entry.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return entry

"""Read a submitted notebook in a process of its own: a text can crash Python's parser."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from helpers.check.grading.definitions import SECONDS, NotANotebook, Notebook

COURSE = Path(__file__).resolve().parents[3]
LARGEST = 20_000_000  # bytes of a notebook


def read(path: Path) -> Notebook:
    """Return the definitions of a notebook.

    Raises:
        NotANotebook: the file is too large, contains no notebook, or is no file at all.
    """
    line = [sys.executable, "-m", "helpers.check.grading.definitions"]
    place, seconds = {"PYTHONPATH": str(COURSE)}, 2 * SECONDS
    try:
        done = subprocess.run(
            line, input=content_of(path), capture_output=True, env=place, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise NotANotebook("the notebook takes too long to read") from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise NotANotebook("Python cannot parse the notebook: a line nests too deeply") from None
    if "error" in found:
        raise NotANotebook(found["error"])
    return Notebook(**found)


def content_of(path: Path) -> bytes:
    """Return the bytes of a file. A link could lead to another student's file, or to a device."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        why = "a link is no notebook" if path.is_symlink() else f"not readable: {error.strerror}"
        raise NotANotebook(why) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotANotebook("this is no file")
    with os.fdopen(file, "rb") as opened:
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise NotANotebook(f"the file has more than {LARGEST:,} bytes")
    return content

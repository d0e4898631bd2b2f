"""Variables that libraries read when they are imported: what the course sets unless you did."""

import os
from collections.abc import MutableMapping

from helpers.runtime.own import cache_folder
from helpers.runtime.private import private_folder

COMPILER = "TORCHINDUCTOR_CACHE_DIR"


def set_defaults(environ: MutableMapping[str, str] = os.environ):
    """Set what this process, its ranks and its programs then find. A value that is there stays.

    `HF_HUB_DISABLE_TELEMETRY=1`: Hugging Face's libraries report nothing about this user.
    `TORCHINDUCTOR_CACHE_DIR`: PyTorch's compiler runs code from its cache, and puts that cache in
    the shared /tmp, under a name that anyone can guess and make first. Here it is the user's own.
    """
    environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if COMPILER not in environ and (folder := own_folder()):
        environ[COMPILER] = os.path.join(folder, "torchinductor")


def own_folder() -> str | None:
    """A folder of this user alone, until the program ends if need be. None on a full disk."""
    for find in (cache_folder, private_folder):
        try:
            return os.fspath(find())
        except (OSError, RuntimeError):  # no home, or one that others can write to
            pass
    return None

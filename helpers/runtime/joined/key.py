"""Share a key among the ranks of a launcher, so that they can prove themselves to each other.

On one machine no other user can learn the key: rank 0 writes it into a folder of this user, and
the ranks' store names the folder. Between machines the key goes through the store itself. Anyone
who reaches the store's port could read it there, so only these machines may be on that network.
"""

import os
import tempfile
import time
from pathlib import Path

import torch.distributed as dist

from helpers.runtime.launcher import Place
from helpers.runtime.private import is_own
from helpers.runtime.proof import KEY_BYTES, new_key

POLL_SECONDS = 0.005


def share_key(place: Place, store: dist.Store, timeout: float) -> bytes:
    """Return the call's key. Every rank calls this, and gets the same key.

    Args:
        timeout: seconds to wait for the other ranks.

    Raises:
        RuntimeError: the folder is not this user's: another process has changed the store.
        TimeoutError: a rank has not read the key in time.
    """
    if not place.one_machine:
        if place.rank == 0:
            store.set("key", new_key().hex())
        return bytes.fromhex(store.get("key").decode())
    if place.rank == 0:
        with tempfile.TemporaryDirectory(prefix="helpers-") as folder:
            key = write_key(Path(folder), new_key())
            store.set("key", folder)
            until = time.monotonic() + timeout
            while store.add("key/read", 0) < place.world_size - 1:
                if time.monotonic() > until:
                    raise TimeoutError("not every rank has read the key")
                time.sleep(POLL_SECONDS)
            return key
    key = read_key(Path(store.get("key").decode()))
    store.add("key/read", 1)
    return key


def write_key(folder: Path, key: bytes) -> bytes:
    with open(os.open(folder / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
    return key


def read_key(folder: Path) -> bytes:
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            own = is_own(os.fstat(directory))
            file = os.open("key", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        finally:
            os.close(directory)
        with open(file, "rb") as stream:
            key = stream.read(KEY_BYTES)
    except OSError as error:
        raise RuntimeError(f"no key of these ranks in {folder}: {error}") from None
    if not own or len(key) < KEY_BYTES:
        raise RuntimeError(
            f"{folder} is not this user's alone: another user may have named it. Start again"
        )
    return key

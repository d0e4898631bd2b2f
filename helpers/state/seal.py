"""Write a checkpoint whole or not at all, and refuse one that is damaged.

A checkpoint is a folder of files. It is written under another name, PATH.writing. Then a **seal**
is added: a file with the size and the checksum of each other file. Then the folder gets its own
name. Renaming is atomic, so a folder under its own name is a whole checkpoint, whenever a rank is
killed.

A file may still be damaged later: cut off by a copy, or changed on the disk. `verify` finds it by
the seal. It does not protect from a person who changes a file and the seal.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from numpy import from_dlpack
from xxhash import xxh3_64_intdigest

SEAL = "checksums.json"
WRITING = ".writing"


class BrokenCheckpoint(ValueError):
    """A checkpoint is torn, incomplete or changed. The message names the file."""


def seal(folder: str | os.PathLike, checksums: dict[str, list] | None = None):
    """Write the seal of a folder, and wait until the disk has all of its files.

    Args:
        checksums: name -> [bytes, checksum], if they are known; None to read every file.
    """
    folder = Path(folder)
    found = measured(folder, files(folder)) if checksums is None else checksums
    for name in found:
        to_disk(folder / name)
    with open(folder / SEAL, "w") as file:
        json.dump(found, file, indent=1, sort_keys=True)
    to_disk(folder / SEAL)
    to_disk(folder)


def verify(folder: str | os.PathLike, share: slice = slice(None)):
    """Check the files of a sealed folder: that they exist, their sizes, their checksums.

    Args:
        share: which of the files to read, by name; so that each rank reads some of them.

    Raises:
        BrokenCheckpoint: the folder or its seal is missing, or a file is missing, too short, too
            long, or not the file that was sealed.
    """
    folder = Path(folder)
    sealed = read_seal(folder)
    for name in sorted(sealed)[share]:
        size, checksum = sealed[name]
        path = folder / name
        if not path.is_file():
            raise BrokenCheckpoint(f"{path} is missing, but the checkpoint was saved with it")
        if (here := path.stat().st_size) != size:
            raise BrokenCheckpoint(
                f"{path} has {here:,} bytes, but {size:,} were saved: the file is torn"
            )
        if digest(path) != checksum:
            raise BrokenCheckpoint(
                f"{path} does not match its checksum: some of its bytes have changed"
            )


def read_seal(folder: Path) -> dict[str, list]:
    """Read a folder's seal: name -> [bytes, checksum].

    Raises:
        BrokenCheckpoint: there is no folder, no seal, or it is not readable.
    """
    if not folder.is_dir():
        unfinished = folder.with_name(folder.name + WRITING)
        why = f"; {unfinished.name} was never finished" if unfinished.is_dir() else ""
        raise BrokenCheckpoint(f"{folder} is not a checkpoint: there is no such folder{why}")
    try:
        found = json.loads((folder / SEAL).read_text())
        return {name: [int(size), str(checksum)] for name, (size, checksum) in found.items()}
    except FileNotFoundError:
        raise BrokenCheckpoint(
            f"{folder / SEAL} is missing: the checkpoint was not written to its end, or not by us"
        ) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise BrokenCheckpoint(f"{folder / SEAL} is not readable: {error}") from None


def begin(path: str | os.PathLike) -> Path:
    """Make the empty folder to write a checkpoint to, and return it. Call it on one rank.

    Whatever an interrupted writing has left there is deleted.

    Raises:
        FileExistsError: `path` exists. An old checkpoint is in danger while a new one replaces it.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(
            f"{path} exists already: give each checkpoint a folder of its own, such as step_000100"
        )
    folder = path.with_name(path.name + WRITING)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def finish(path: str | os.PathLike, checksums: dict[str, list] | None = None):
    """Seal what was written after `begin`, and give it its own name. Call it on one rank."""
    path = Path(path)
    folder = path.with_name(path.name + WRITING)
    seal(folder, checksums)
    os.rename(folder, path)
    to_disk(path.parent)


def newest(folder: str | os.PathLike) -> Path | None:
    """Return the last whole checkpoint in a folder of checkpoints, by name; None if there is none.

    Numbers in names count by value: step_10 comes after step_9. Damaged and unfinished checkpoints
    are passed over.
    """
    return next(whole(folder), None)


def whole(folder: str | os.PathLike) -> Iterator[Path]:
    """Yield the whole checkpoints of a folder, from the last one, by name."""
    folder = Path(folder)
    for path in sorted(folder.iterdir() if folder.is_dir() else (), key=age, reverse=True):
        if path.is_dir() and not path.name.endswith(WRITING):
            try:
                verify(path)
            except BrokenCheckpoint:
                continue
            yield path


def age(path: Path) -> list[str | int]:
    """A key to sort checkpoints by: the name, with its numbers as numbers."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def prune(folder: str | os.PathLike, keep: int = 2):
    """Delete the checkpoints that are older than the last `keep` whole ones. Call it on one rank.

    It reads the checkpoints that stay: one that is damaged does not count. What interrupted
    writings have left is deleted, too; a folder without a seal is not.
    """
    if keep < 1:
        raise ValueError(f"prune keeps one checkpoint or more, not {keep}")
    last = list(itertools.islice(whole(folder), keep))
    for path in sorted(Path(folder).iterdir()) if len(last) == keep else ():
        if age(path) >= age(last[-1]) or not path.is_dir():
            continue
        if (path / SEAL).is_file() and not path.name.endswith(WRITING):
            # A new name first: what a kill leaves of it is not taken for a damaged checkpoint.
            path = path.rename(path.with_name(path.name + WRITING))
        if path.name.endswith(WRITING):
            shutil.rmtree(path)


def files(folder: Path) -> list[str]:
    """The names of a checkpoint's files, without the seal, sorted."""
    return sorted(file.name for file in folder.iterdir() if file.is_file() and file.name != SEAL)


def measured(folder: Path, names: Iterable[str]) -> dict[str, list]:
    """Read these files: name -> [bytes, checksum]."""
    return {name: [(folder / name).stat().st_size, digest(folder / name)] for name in names}


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def flushing(folder: Path):
    """Send the files of a folder to the disk while others still write them.

    The writer, and `seal`, then wait for little: without this, the disk is idle until the last file
    is written.
    """
    ended = threading.Event()

    def flush():
        while not ended.wait(0.005):
            with suppress(OSError):  # renamed, or a full disk: the writer and `seal` tell
                for path in folder.iterdir():
                    with open(path, "rb") as file:
                        os.fdatasync(file.fileno())

    thread = threading.Thread(target=flush, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def checksum(value) -> int:
    """64 bits that depend on every bit of a tensor or a number."""
    bytes_ = torch.as_tensor(value).detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return xxh3_64_intdigest(from_dlpack(bytes_))  # after numpy(), no storage can be resized


def to_disk(path: Path):
    """Wait until the disk has a file, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

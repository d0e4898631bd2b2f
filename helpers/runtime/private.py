"""Files and folders that only this user can reach, or change; the cache folder."""

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "HELPERS_CACHE"
OTHERS_WRITE = 0o022
ROOT = 0  # root can change every file anyway
NOBODY = 65534  # Linux shows this owner where the process's user namespace does not map the owner
ALL_USERS = ["0", "0", "4294967295"]  # the uid_map of a namespace that maps every owner


def check_own(paths: Iterable[str | os.PathLike], remedy: str = ""):
    """Refuse files and folders that other users can change.

    The check follows links: the target counts.

    In the ranks' own network, Linux shows the files of root and of other users with the same
    owner. There this function refuses both.

    Args:
        paths: the files and folders.
        remedy: another way out for the reader; the error repeats it.

    Raises:
        PermissionError: another user owns a path, or can write to it.
        OSError: a path does not exist.
    """
    if not hasattr(os, "geteuid"):  # on Windows these mode bits mean nothing
        return
    for path in paths:
        status = os.stat(path)
        hidden = status.st_uid == NOBODY and hides_owners()
        mine = proves_owner(path) if hidden else status.st_uid == os.geteuid()
        if not (mine or hidden or status.st_uid == ROOT):
            refuse(f"{path} belongs to another user", remedy or "Use a file of your own.")
        if status.st_mode & OTHERS_WRITE:
            refuse(f"{path} can be written by other users", advice(path, status, mine), remedy)
        if hidden and not mine:
            refuse(
                f"{path} belongs to root or to another user, and a rank in the ranks' own network "
                "cannot see which",
                "Run it with launch(…, network=True), or use a file of your own.",
                remedy,
            )


def refuse(reason: str, *remedies: str):
    """Raise PermissionError with the reason and the remedies."""
    advice = " ".join(f"{remedy.rstrip('.')}." if remedy else "" for remedy in remedies)
    raise PermissionError(f"{reason}, so this user's programs do not read it. {advice}".rstrip())


def advice(path: str | os.PathLike, status: os.stat_result, mine: bool) -> str:
    """What the reader can do about a path that other users can write to."""
    if status.st_mode & stat.S_ISVTX:  # /tmp, for example
        return "Every user can add files to it: make a folder of your own in it, and use that"
    if not mine:  # chmod works for the owner only
        return "Use a file of your own"
    return f"If only you have written it: chmod -R go-w {path}"


def hides_owners() -> bool:
    """Does this process's user namespace leave out some owners of files? Linux."""
    try:
        return Path("/proc/self/uid_map").read_text().split() != ALL_USERS
    except OSError:
        return False


def proves_owner(path: str | os.PathLike) -> bool:
    """Does this user own the path, whatever owner Linux shows?"""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOATIME))  # for the owner only
    except OSError:
        return False
    return True


def below(folder: str | os.PathLike) -> Iterable[Path]:
    """Yield the folder and everything below it, without links whose target does not exist."""
    yield Path(folder)
    for path, folders, files in os.walk(folder):
        found = (Path(path, name) for name in (*folders, *files))
        yield from (path for path in found if path.exists())


def cache_folder() -> Path:
    """Return the folder for computed files: $HELPERS_CACHE, else one in the user's own caches.

    The latter is training-at-scale in $XDG_CACHE_HOME or ~/.cache. The first call makes the
    folder, for this user alone.

    Raises:
        PermissionError: another user owns the folder, or can write to it.
        OSError: the folder cannot be made.
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


def write_whole(path: Path, data: bytes):
    """Write the whole file, for this user alone, or nothing: a reader never sees half a file."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def is_own(status: os.stat_result) -> bool:
    """Is this user the only one that can enter the folder?"""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def open_private(folder: Path, name: str, flags: int) -> int:
    """Return the descriptor of a file in a folder that only this user can enter.

    Nobody can put another folder, or a link, in the place of either. A new file is for this user
    alone.

    Raises:
        OSError: there is no such folder or file, or another user can enter the folder.
    """
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not is_own(os.fstat(directory)):
            raise PermissionError("other users can enter the folder")
        return os.open(name, flags | os.O_NOFOLLOW, mode=0o600, dir_fd=directory)
    finally:
        os.close(directory)

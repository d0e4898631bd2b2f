"""A call as a folder: saved here, run by torchrun on any number of machines, read back here.

    save_job("job", train, steps=100)
    !torchrun --nproc-per-node 8 -m helpers.runtime.joined.job job
    runs = load_runs("job")

Every machine must see the folder. The job in it is a pickle, which runs as code when it is read:
so it is read only if it is this user's and no one else could have written it. Results are JSON.
"""

import io
import linecache
import os
import secrets
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

from helpers.runtime.blame import pack_or_name
from helpers.runtime.cluster import DEFAULT_TIMEOUT, cell_sources
from helpers.runtime.joined import member
from helpers.runtime.payload import Packer, Parcel, unpack
from helpers.runtime.plain import as_json
from helpers.runtime.runs import load_runs, save_rank

__all__ = ["load_runs", "save_job"]

JOB = "job.pickle"
USAGE = """\
usage: torchrun --nproc-per-node RANKS -m helpers.runtime.joined.job FOLDER
FOLDER is what save_job wrote. srun and mpiexec start it as well: srun python -m helpers…"""


def save_job(folder: str | os.PathLike, fn, /, **kwargs):
    """Save the call `fn(worker, **kwargs)`, for `torchrun … -m helpers.runtime.joined.job folder`.

    `fn` must return what JSON can hold: numbers, words, lists, dicts, tensors (as nested lists).

    Args:
        folder: made if need be, and then closed to other users. Results of an earlier job in it go.

    Raises:
        CannotTravel: `fn` or an argument cannot be saved; names the variable.
        PermissionError: the folder is another user's, or other users can write to it.
    """
    names = {getattr(fn, "__name__", "the function"): fn, **kwargs}
    packed = pack_bytes((fn, kwargs, cell_sources()), names)
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own(folder.stat(), str(folder))  # and its mode stays: others may be meant to look in
    for old in folder.glob("rank-*.json"):
        old.unlink()
    new = folder / f".{JOB}.{os.getpid()}"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(packed)
        new.replace(folder / JOB)
    finally:
        new.unlink(missing_ok=True)


def pack_bytes(value, names) -> bytes:
    """One string of bytes, for a file. Errors as those of `pack_or_name`."""
    stream = io.BytesIO()
    try:
        Packer(stream, None).dump(value)
    except Exception:
        pack_or_name(value, names, "into a file").close()  # names the culprit
        raise
    return stream.getvalue()


def load_job(folder: str | os.PathLike):
    """`(fn, kwargs)` of a saved job.

    Raises:
        PermissionError: another user owns it, or could have written it.
        FileNotFoundError: there is none.
    """
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        check_own(os.fstat(directory), str(folder))
        file = os.open(JOB, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    with open(file, "rb") as job:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{Path(folder) / JOB} is not a plain file")
        check_own(status, str(Path(folder) / JOB))
        packed = job.read()
    fn, kwargs, sources = unpack(Parcel(packed, [len(packed)], None))
    for name, source in sources.items():  # so that tracebacks can show a cell
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    return fn, kwargs


def check_own(status: os.stat_result, name: str):
    """Stricter than `own.check_own`: a pickle runs as code, so root's is refused, too."""
    if status.st_uid != os.geteuid():
        raise PermissionError(
            f"{name} belongs to another user, and a job in it could run that user's code. "
            "Save the job in a folder of yours."
        )
    if status.st_mode & 0o022:
        raise PermissionError(
            f"{name} can be written by other users, and a job in it could run their code. "
            f"If only you have written it: chmod go-w {name}"
        )


def run_job(folder: str | os.PathLike, rank: member.Member):
    """Run the job as this rank, and leave its result in the folder."""
    fn, kwargs = load_job(folder)

    def job(worker):
        result = as_json(fn(worker, **kwargs), "result")
        return {"result": result, "attempt": secrets.token_hex(8) if worker.rank == 0 else ""}

    device, backend = rank.choose(rank.world_size, None)
    place = {"device": device, "backend": backend, "state": SimpleNamespace()}
    runs = rank.run(job, {}, live=None, timeout=DEFAULT_TIMEOUT, **place)
    attempt = runs[0]["attempt"]
    runs.results[:] = runs.column("result")
    save_rank(folder, runs, rank.rank, attempt)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    rank = member.here()
    if rank is None:
        print(f"no launcher started this process\n{USAGE}", file=sys.stderr)
        return 2
    run_job(arguments[0], rank)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

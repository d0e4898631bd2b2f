"""Save a call as a folder, run it with torchrun on any number of machines, read the results back.

    save_job("job", train, steps=100)
    !torchrun --nproc-per-node 8 -m helpers.runtime.joined.job job
    runs = load_runs("job")

Every machine must see the folder. The job is a pickle, and reading a pickle runs its code. So a
rank reads the job only if this user owns it and no other user could have written it. Results are
JSON.
"""

import io
import os
import secrets
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

from helpers.runtime.cluster import DEFAULT_TIMEOUT, check_call
from helpers.runtime.joined import member
from helpers.runtime.payload import Packer, Parcel, unpack
from helpers.runtime.plain import as_json
from helpers.runtime.private import write_whole
from helpers.runtime.report import pack_or_name
from helpers.runtime.runs import load_runs, save_rank
from helpers.runtime.stacks import cell_sources, know_cells

__all__ = ["load_runs", "save_job"]

JOB = "job.pickle"
USAGE = """\
usage: torchrun --nproc-per-node RANKS -m helpers.runtime.joined.job FOLDER
FOLDER is the folder of save_job. srun and mpiexec start it as well: srun python -m helpers…"""


def save_job(folder: str | os.PathLike, fn, /, **kwargs):
    """Save the call `fn(worker, **kwargs)`, for `torchrun … -m helpers.runtime.joined.job folder`.

    `fn` must return values with a form in JSON: numbers, words, lists, dicts, tensors (they become
    nested lists).

    Args:
        folder: for the job. If it does not exist, this makes it, closed to other users. Results of
            an earlier job in it are removed.

    Raises:
        CannotTravel: `fn` or an argument cannot be saved; names the variable.
        TypeError: `fn` does not accept these arguments, or `folder` is no path.
        NotADirectoryError: `folder` is a file.
        PermissionError: the folder is another user's, or other users can write to it.
    """
    check_call(fn, kwargs)
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"folder must be a path, not {folder!r}")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise NotADirectoryError(f"{folder} is a file: save the job in a folder of its own")
    names = {getattr(fn, "__name__", "the function"): fn, **kwargs}
    packed = pack_bytes((fn, kwargs, cell_sources()), names)
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own(folder.stat(), str(folder))  # its mode stays: other users may be meant to read it
    for old in folder.glob("rank-*.json"):
        old.unlink()
    write_whole(folder / JOB, packed)


def pack_bytes(value, names) -> bytes:
    """Pack the value into one string of bytes, for a file. Raises as `pack_or_name` does."""
    stream = io.BytesIO()
    try:
        Packer(stream, None).dump(value)
    except Exception:
        pack_or_name(value, names, "into a file").close()  # names the culprit
        raise
    return stream.getvalue()


def load_job(folder: str | os.PathLike):
    """Return `(fn, kwargs)` of a saved job.

    Raises:
        PermissionError: another user owns the job, or could have written it.
        FileNotFoundError: the folder contains no job.
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
            raise PermissionError(
                f"{Path(folder) / JOB} is not a plain file: save the job again, in a new folder"
            )
        check_own(status, str(Path(folder) / JOB))
        packed = job.read()
    fn, kwargs, sources = unpack(Parcel(packed, [len(packed)], None))
    know_cells(sources)
    return fn, kwargs


def check_own(status: os.stat_result, name: str):
    """Refuse what `private.check_own` refuses, and root's files too: a pickle runs as code."""
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
    """Run the job as this rank, and write its result to the folder."""
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

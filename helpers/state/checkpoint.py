"""Save and load with `torch.distributed.checkpoint`, from any layout and into any other.

A tensor that DTensor can represent is saved in its own layout. Any other tensor (flat ranges,
chosen or uneven cuts) is first resharded to even rows over all ranks. Each number is written once.
The files use plain names only, so any layout can load them, and so can PyTorch alone.

A checkpoint is written whole or not at all, and its files have checksums: see `seal`.

Load only checkpoints that you trust: PyTorch stores a checkpoint's table of contents as a pickle,
and its planning sends pickles over the process group.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from helpers.comm.mesh import Mesh
from helpers.state import seal
from helpers.state.accept import finite, known
from helpers.state.all_parts import AllParts
from helpers.state.facts import exchange
from helpers.state.full_state import Kept, moments_and_counts, read
from helpers.state.increments import Increments, Writer
from helpers.state.part import Part
from helpers.state.storage import Storage

COUNTS, NOTES = "counts", "notes"
# A single process reads or writes: on purpose. (A context would change other threads' filters.)
warnings.filterwarnings("ignore", "torch.distributed is disabled")


def save(
    path: str | PathLike,
    mesh: Mesh | None,
    parts: AllParts,
    local: Mapping[str, torch.Tensor],
    kept: Kept | None = None,
    notes: Mapping | None = None,
    increments: Increments | None = None,
):
    """Write a checkpoint. Every rank of the world calls it.

    Args:
        path: a new folder, the same on all ranks, on a disk that all ranks see.
        mesh: None for a single process, which needs no process group.
        local, kept: this rank's tensors and optimizer state by key, as for `full_state`.
        notes: anything else, as JSON can write it: the same on all ranks.
        increments: of the run: write only what has changed since its last checkpoint.

    Raises:
        FileExistsError: the folder exists.
        OSError: the disk refuses, on any rank. What was written is removed.
        ValueError: as `full_state`.
    """
    write(path, Storage(mesh, parts), local, kept, notes, increments)


def write(
    path: str | PathLike,
    storage: Storage,
    local: Mapping[str, torch.Tensor],
    kept: Kept | None = None,
    notes: Mapping | None = None,
    increments: Increments | None = None,
):
    """As `save`. It makes no group, and all of its messages are in the storage's group."""
    rank, size, tell = everyone(storage.mesh, storage.group)
    first = rank == 0
    together(lambda: seal.begin(path) if first else None, tell)
    folder = Path(path).with_name(Path(path).name + seal.WRITING)
    moments, counts = moments_and_counts(storage.parts, kept or {}, storage.group)
    state = {f"model.{name}": tensor for name, tensor in storage.stored(local).items()}
    for slot, tensors in moments.items():
        for name, tensor in storage.stored(tensors).items():
            state[f"optimizer.{slot}.{name}"] = tensor
    for name, facts in ((COUNTS, counts), (NOTES, notes or {})):
        state[name] = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
    alone = storage.mesh is None
    # DCP's writer waits for the disk on each rank: rank 0's machine cannot do that for the others.
    writer = Writer(folder, increments) if increments else dcp.FileSystemWriter(folder)
    try:
        with seal.flushing(folder):
            dcp.save(state, storage_writer=writer, process_group=storage.group, no_dist=alone)
        tell(None)  # all files are written
        share, own = slice(rank, None, size), {}
        together(lambda: own.update(seal.measured(folder, seal.files(folder)[share])), tell)
        checksums = {name: found for some in tell(own) for name, found in some.items()}
        together(lambda: seal.finish(path, checksums) if first else None, tell)
        if increments:
            increments.done(Path(path), writer)
    except (dcp.CheckpointException, OSError) as error:  # a full disk, for example
        if first:
            shutil.rmtree(folder, ignore_errors=True)
        raise not_saved(path, error) from None


def not_saved(path: str | PathLike, error: BaseException) -> BaseException:
    """Make one sentence of an error of the disk: PyTorch adds the stacks of all ranks."""
    failures = getattr(error, "failures", {0: (error, None)})
    cause, _ = failures[min(failures)]
    if "inline_container" in str(
        cause
    ):  # PyTorch's C++ meets the full disk in the middle of a file
        cause = "the disk is full, or refuses"
    elif not isinstance(cause, OSError):
        return error
    return OSError(
        f"{path} was not saved: {cause}. What was written of it is removed; the checkpoints before "
        "it are whole"
    )


@torch.no_grad()
def load(
    path: str | PathLike,
    mesh: Mesh | None,
    parts: AllParts,
    local: Mapping[str, torch.Tensor],
    check: Callable[[Kept], None] = lambda kept: None,
) -> dict[str, dict[str, object]]:
    """Read a checkpoint into this rank's tensors, in place, cast to their dtype.

    Every rank of the world calls it. The layout may differ from the layout that was saved.

    Args:
        check: of the optimizer state by plain name, which it refuses by a ValueError.

    Returns:
        This rank's optimizer state, {key: {slot: value}}, in the dtype that was saved.

    Raises:
        BrokenCheckpoint: the checkpoint is torn, incomplete or changed. It is a ValueError; every
            rank raises it, before anything is read.
        ValueError: a name is missing or unknown; a tensor has another shape, or a number that is
            not finite. Every rank raises it, and `local` has not changed.
    """
    rank, size, tell = everyone(mesh)
    together(lambda: seal.verify(path, slice(rank, None, size)), tell)
    reader = dcp.FileSystemReader(path)
    contents = reader.read_metadata().state_dict_metadata
    for name, shape in parts.shapes.items():
        found = contents.get(f"model.{name}")
        if not isinstance(found, TensorStorageMetadata) or tuple(found.size) != shape:
            raise ValueError(f"{path} does not contain {name} {shape}: was another model saved?")
    known((key[6:] for key in contents if key.startswith("model.")), parts.shapes, str(path))
    counts = read_facts(COUNTS, reader, contents)
    storage = Storage(mesh, parts)
    found = read_tensors("model.", storage, reader, contents)
    own, kept = parts.ranks[storage.rank], {}
    for key, part in own.items():
        if part.name in counts:
            kept[key] = {slot: read(count) for slot, count in counts[part.name].items()}
    for slot in sorted({key.split(".")[1] for key in contents if key.startswith("optimizer.")}):
        for key, value in read_tensors(f"optimizer.{slot}.", storage, reader, contents).items():
            kept.setdefault(key, {})[slot] = value
    together(lambda: all_finite(own, found, kept), tell)
    together(lambda: check({own[key].name: slots for key, slots in kept.items()}), tell)
    for key, value in found.items():
        local[key].copy_(value)
    return kept


def all_finite(own: Mapping[str, Part], found: Mapping, kept: Kept):
    """Check all numbers that this rank has read. Raises ValueError."""
    for key, part in own.items():
        if key in found:
            finite(part.name, found[key])
        for slot, value in kept.get(key, {}).items():
            if isinstance(value, torch.Tensor):
                finite(f"{slot} of {part.name}", value)


def notes(path: str | PathLike) -> dict:
    """Read the notes of a checkpoint; {} if it has none. A rank may call it alone."""
    reader = dcp.FileSystemReader(path)
    contents = reader.read_metadata().state_dict_metadata
    return read_facts(NOTES, reader, contents) if NOTES in contents else {}


def everyone(
    mesh: Mesh | None, group: dist.ProcessGroup | None = None
) -> tuple[int, int, Callable[[object], list]]:
    """This rank, the number of ranks, and an exchange of facts between them."""
    if mesh is None:
        return 0, 1, lambda fact: [fact]
    return dist.get_rank(), dist.get_world_size(), partial(exchange, group=group)


def together(act: Callable[[], object], tell: Callable[[object], list] = exchange):
    """Run a function on every rank. If it fails on a rank, raise the same error on every rank."""
    failed, kinds = "", (FileExistsError, OSError, seal.BrokenCheckpoint, ValueError)
    try:
        act()
    except kinds as error:
        kind = next(k for k, known in enumerate(kinds) if isinstance(error, known))
        failed = f"{kind}\n{error}"
    for other in tell(failed):
        if other:
            kind, text = other.split("\n", 1)
            raise kinds[int(kind)](text)


def read_facts(name: str, reader, contents) -> dict:
    raw = torch.empty(contents[name].size, dtype=torch.uint8)
    dcp.load({name: raw}, storage_reader=reader, no_dist=True)
    return json.loads(bytes(raw.tolist()))


def read_tensors(prefix: str, storage: Storage, reader, contents) -> dict[str, torch.Tensor]:
    """Read this rank's tensors, by key, of all plain names that are stored under a prefix."""
    dtypes = {
        key.removeprefix(prefix): found.properties.dtype
        for key, found in contents.items()
        if key.startswith(prefix)
    }
    room = storage.empty(dtypes)
    wanted = {prefix + name: tensor for name, tensor in room.items()}
    dcp.load(wanted, storage_reader=reader, no_dist=storage.mesh is None)
    return storage.local(room)

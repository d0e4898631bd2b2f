"""Write only what has changed since the last checkpoint; the rest is a link to the older file.

A frozen base model, or the experts that got no token, are the same in every checkpoint. A part
whose checksum has not changed is not written again: the new folder gets a **hard link** to the file
that has it. Each folder is then whole by itself, with its own seal: `verify`, `newest`, PyTorch's
own reader and a copy of the folder work as before. A clean-up deletes names. The file system keeps
a file until no kept folder names it.

One copy of a number is one copy: a damaged file damages every checkpoint that links it. The file is
checked against its older seal before it is linked again, so a later checkpoint does not repeat the
damage.

Source: Check-N-Run (Eisenman et al. 2022, NSDI) saves the changed rows of a recommender's tables.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from helpers.state import seal


@dataclass(frozen=True)
class Prefix:
    """Of the names of a rank's files, as PyTorch's writer reads it from a plan."""

    prefix: str


class Increments:
    """What the last checkpoint of this run has, as this rank wrote it. Every rank makes one.

    Attributes:
        last: the folder of the last checkpoint; None: the next save writes everything.
        known: part of a tensor -> its checksum, dtype and shape, and where it is.
    """

    def __init__(self):
        self.last: Path | None = None
        self.known: dict[object, tuple[tuple, WriteResult]] = {}

    def done(self, path: Path, writer: "Writer"):
        """The writer's checkpoint is whole, under this name."""
        self.last, self.known = path, writer.found


class Writer(dcp.FileSystemWriter):
    """PyTorch's writer of one checkpoint, which links what is in the one before."""

    def __init__(self, folder: Path, before: Increments, **options):
        super().__init__(folder, **options)
        self.folder, self.before = folder, before
        self.found: dict[object, tuple[tuple, WriteResult]] = {}

    def prepare_global_plan(self, plans):
        """Give the new files names of their own: writing to a linked file would change it."""
        own = uuid4().hex  # folders may have one name: run/1/state, run/2/state
        named = [Prefix(f"__{rank}_{own}_") for rank in range(len(plans))]
        return [replace(p, storage_data=name) for p, name in zip(plans, named, strict=True)]

    def write_data(self, plan, planner):
        data = {item.index: planner.resolve_data(item) for item in plan.items}
        sums = {index: (seal.checksum(x), x.dtype, x.shape) for index, x in data.items()}
        linked, same, changed = {}, [], []
        for item in plan.items:
            known, result = self.before.known.get(item.index, (None, None))
            if known == sums[item.index] and self.link(result.storage_data.relative_path, linked):
                same.append(result)
            else:
                changed.append(item)
        results = [*same, *super().write_data(replace(plan, items=changed), planner).wait()]
        self.found = {result.index: (sums[result.index], result) for result in results}
        future = Future()
        future.set_result(results)
        return future

    def link(self, name: str, linked: dict[str, bool]) -> bool:
        """Link a file of the last checkpoint, if it is still as it was sealed; return that."""
        if name not in linked:
            try:
                old = self.before.last / name
                _, sealed = seal.read_seal(self.before.last)[name]
                linked[name] = seal.digest(old) == sealed
                if linked[name]:
                    os.link(old, self.folder / name)
            except (OSError, KeyError, seal.BrokenCheckpoint):  # gone, or on another disk
                linked[name] = False
        return linked[name]

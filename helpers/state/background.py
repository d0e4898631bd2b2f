"""Save while training goes on: copy the state, and let a thread write the copy.

Training changes its tensors in place, so it waits for the copy, but not for the disk. Disk and
checksums take many times as long. Source: CheckFreq (Mohan et al. 2021, FAST), which calls the two
parts snapshot and persist.
"""

import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike

import torch
import torch.distributed as dist

from helpers.comm.mesh import Mesh, make_mesh
from helpers.runtime.proof import prove
from helpers.state import checkpoint
from helpers.state.all_parts import AllParts
from helpers.state.full_state import Kept
from helpers.state.increments import Increments
from helpers.state.storage import Storage


class Background:
    """Write checkpoints behind training, one after another. Every rank makes one.

    The copy stays in memory between saves, in the size of this rank's state: new memory would take
    longer than the copy itself. Therefore a save waits for the writing before it. To refuse would
    lose a checkpoint that the interval between checkpoints counts on, and a second copy would not
    help a disk that is too slow.

    The ranks' threads have a process group of their own, because training goes on in the others.

    Args:
        increments: as for `checkpoint.save`.
    """

    def __init__(self, increments: Increments | None = None):
        self.increments = increments
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.writing: Future | None = None
        self.group: dist.ProcessGroup | None = None
        self.storage: Storage | None = None
        self.room: dict[tuple[str, str], torch.Tensor] = {}

    @torch.no_grad()
    def save(
        self,
        path: str | PathLike,
        mesh: Mesh | None,
        parts: AllParts,
        local: Mapping[str, torch.Tensor],
        kept: Kept | None = None,
        notes: Mapping | None = None,
    ):
        """As `checkpoint.save`, but return after the copy. What is written is the state of now.

        Raises:
            FileExistsError, OSError, ValueError: of the writing before. Then nothing is copied:
                call it again.
        """
        self.wait()
        self.prepare(mesh, parts)
        local = {key: self.copied(key, "", tensor) for key, tensor in local.items()}
        kept = {
            key: {slot: self.copied(key, slot, value) for slot, value in slots.items()}
            for key, slots in (kept or {}).items()
        }
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        copies = local, kept, copy.deepcopy(notes), self.increments
        self.writing = self.thread.submit(checkpoint.write, path, self.storage, *copies)

    def wait(self):
        """Wait until the last checkpoint is whole. Call it before training ends.

        Raises:
            FileExistsError, OSError, ValueError: the writing failed. Every rank raises it, once.
        """
        if self.writing is not None:
            error = self.writing.exception()
            self.writing = None
            if error:
                raise error

    def prepare(self, mesh: Mesh | None, parts: AllParts):
        """Make the group and the storage. Not on the thread: ranks make groups in one order."""
        if mesh is not None and self.group is None:
            self.group = dist.new_group(backend="gloo", group_desc="checkpoints")
            prove(self.group)
        if self.storage is None or self.storage.parts is not parts:
            if mesh is not None and mesh.device_mesh.device_type != "cpu":
                mesh = make_mesh(mesh.layout)  # the copies are in the host's memory
            self.storage = Storage(mesh, parts, self.group)

    def copied(self, key: str, slot: str, value):
        """Copy a tensor into memory of the host. On a GPU the copy may still be under way."""
        if not isinstance(value, torch.Tensor):
            return value
        room = self.room.get((key, slot))
        if room is None or (room.shape, room.dtype) != (value.shape, value.dtype):
            where = {"device": "cpu", "pin_memory": value.is_cuda}
            room = self.room[key, slot] = torch.empty(value.shape, dtype=value.dtype, **where)
        return room.copy_(value, non_blocking=True)

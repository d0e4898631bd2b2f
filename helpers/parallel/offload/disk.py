"""Owners whose optimizer state and master copies are in files."""

from collections.abc import Callable
from os import PathLike

from helpers.parallel.offload.blocks import PAGE
from helpers.parallel.offload.front import Moved, in_front
from helpers.parallel.offload.state import StateOnDisk
from helpers.parallel.owners.local import Local
from helpers.state import checkpoint
from helpers.state.part import decays
from helpers.state.seal import BrokenCheckpoint


class OnDisk(Moved):
    """Keep the optimizer's state in files.

    An update passes all of this rank's state through a fixed number of buffers: while one block is
    updated, the next is read and the last is written. Master copies that are not the parameters
    themselves are in memory only from an update to `publish`.

    The update is written to a second file. So the last whole step survives a killed rank, a full
    disk or a torn file: see `recover`.

    Attributes:
        folder, block, buffers: as for `on_disk`.
        disk: the files and the buffers.

    Raises:
        ValueError: the rule is not "adamw".
    """

    folder: str | PathLike
    block: int
    buffers: int

    def __init__(self, model, parts, mesh, *, rule, **seams):
        if rule.rule != "adamw":
            raise ValueError(f"the files have room for AdamW's state, not for that of {rule.rule}")
        super().__init__(model, parts, mesh, rule=rule, **seams)
        own = self.masters  # frozen ones, too: they may be of a state that was loaded
        copies = [m for name, m in own.items() if m.requires_grad and m is not self.values[name]]
        rank = 0 if mesh is None else mesh.rank
        _, _, self.tell = checkpoint.everyone(mesh)
        self.disk = StateOnDisk(own, copies, self.folder, rank, self.block, self.buffers)
        self.decay = {name: rule.weight_decay * decays(self.world.own[name]) for name in own}

    def advance(self, rule):
        if self.disk.versions.current is None:  # the state before the first update
            self.disk.write({}, {"scale": self.precision.state()})
        after = self.precision.start()  # a copy: as it will be after this update
        after.adapt(skipped=False)
        self.disk.update(self.gradients(), rule, self.decay, {"scale": after.state()})

    def publish(self):
        super().publish()
        self.disk.free()

    def moments(self):
        self.disk.reload()
        return self.disk.moments()

    def load(self, state):
        self.disk.allocate()
        super().load(state)

    def take(self, moments):
        self.disk.write(moments, {"scale": self.precision.state()})
        self.tell(None)  # all ranks have it: what they had before is given up, though it is later
        self.disk.versions.forget()

    def held(self):
        files = sum(file.block * file.count for file in self.disk.versions.files)
        disk = {("optimizer", "disk"): files, ("buffers", "cpu"): self.disk.stream.nbytes}
        return {**super().held(), **{kind: size for kind, size in disk.items() if size}}

    def close(self):
        super().close()
        self.disk.close()


def on_disk(
    owner: Callable = Local,
    *,
    folder: str | PathLike,
    block: int = 2**24,
    buffers: int = 3,
) -> Callable:
    """Make an owner that keeps its optimizer's state in files: `Recipe(owner=on_disk(Zero3, …))`.

    Args:
        owner: a class of owners, or a partial of one.
        folder: on the disk of each rank; ranks of several machines may have folders of one name.
        block: bytes that are read and written at once: a multiple of 4096.
        buffers: blocks in memory, 1 or more.

    Raises:
        ValueError: `block` or `buffers` is out of range.

    Source: Rajbhandari et al. 2021, ZeRO-Infinity, sections 5.1.1 and 6.3.
    """
    if block < PAGE or block % PAGE or buffers < 1:
        raise ValueError(f"{block=} must be a multiple of {PAGE}, and {buffers=} at least 1")
    return in_front(OnDisk, owner, {"folder": folder, "block": block, "buffers": buffers})


def recover(trainer) -> int:
    """Continue from the last update that is whole on every rank. Every rank calls it.

    Args:
        trainer: new, of the same recipe, on the same ranks, with the folder of the run that ended.

    Returns:
        The number of updates of that state.

    Raises:
        BrokenCheckpoint: no update is whole on all ranks. The message names what is wrong.
    """
    disk = trainer.owner.disk
    found, wrong = disk.versions.whole(disk.stream)
    _, _, tell = checkpoint.everyone(trainer.mesh)
    told = tell([sorted(found), wrong])
    common = set.intersection(*(set(updates) for updates, _ in told))
    if not common:
        said = "; ".join(f"rank {r}: {', '.join(w)}" for r, (_, w) in enumerate(told) if w)
        raise BrokenCheckpoint(f"{disk.versions.folder} has no update that all ranks have. {said}")
    trainer.precision.load(disk.use(found[max(common)])["scale"])
    trainer.spread()
    return max(common)

"""ZeRO stage 2: also of the gradients, each rank has only 1/N after the backward."""

import warnings

from helpers.comm.transport import GroupTransport
from helpers.parallel.zero.gradients import Freed, Pool
from helpers.parallel.zero.stage1 import Zero1


class Zero2(Zero1):
    """Hold all parameters; of gradients, optimizer's state and master copies, 1/N.

    In the backward, a unit's gradients are copied to a row. When the unit's backward has ended, the
    row is reduce-scattered, and freed before the next row is filled. So a rank has the full
    gradients of one unit at a time.

    A rank sends (m + 1) (N-1)/N bytes per byte of parameters and step, with m micro-batches: it
    cannot keep the gradients of a micro-batch until the next. With m = 1 this is as much as in
    stage 1. The shards of several micro-batches are added in the dtype of the master copies.

    Args:
        in_flight: how many rows may still be sent while the next row is filled. 1 hides more of the
            messages behind the backward, and needs the memory of another unit's gradients.
        others, raises: as for Zero1.
    """

    wants = frozenset({"units", "gradients"})
    stage = 2

    def __init__(self, model, parts, mesh, *, in_flight: int = 0, **options):
        self.pools: dict[GroupTransport, Pool] = {}
        self.warned = False
        super().__init__(model, parts, mesh, in_flight=in_flight, **options)
        self.rows_of: dict[str, list[int]] = {}
        for i, unit in enumerate(self.unit_of):
            self.rows_of.setdefault(unit, []).append(i)

    def gradient_memory(self, row):
        if row.transport not in self.pools:
            sizes = [one.row.size for one in self.rows if one.transport is row.transport]
            self.pools[row.transport] = Pool(row.transport, max(sizes))
        wide = self.masters[next(iter(row.parameters))].dtype
        return Freed(row.row, row.parameters, row.transport, self.pools[row.transport], wide)

    def make_room(self, i):
        if i in self.sending:
            self.sending.remove(i)
            self.finish(i)
        if self.gradients_of[i].whole is None:
            self.land(self.in_flight)

    def send_complete(self, i, name):
        """Send nothing yet: a row is sent when its unit's backward has ended."""

    def after(self, unit):
        for i in self.filled(unit.name):  # none after a forward
            self.send(i)

    def filled(self, unit: str) -> list[int]:
        """The unit's rows with gradients that have not been sent."""
        rows = self.rows_of.get(unit, ())
        return [i for i in rows if i in self.gradients_of and self.gradients_of[i].taken]

    def send(self, i):
        super().send(i)
        if self.gradients_of[i].sent == 2 and not self.warned:
            self.warn()

    def finish(self, i):
        super().finish(i)
        self.note(i, "gradients", "freed")
        self.note(i, "gradient shard", "held", self.gradients_of[i].shard)

    def send_what_is_left(self):
        for i in reversed(self.gradients_of):
            if self.gradients_of[i].taken:  # an engine that does not report units
                self.send(i)

    def warn(self):
        self.warned = True
        if self.transport.rank == 0 and self.transport.size > 1:
            warnings.warn(
                f"ZeRO stage {self.stage} sends the gradients of each micro-batch. Stage 1 sends "
                "them once in a step: if its memory suffices, it is cheaper",
                stacklevel=2,
            )

"""One call of a collective through shared memory: agreed on by all ranks, then piece by piece.

Every rank has a scratch, in which it lays pieces of an ordinary tensor before the others. The first
piece is in the scratch when the ranks agree on the call: so one barrier serves for both.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.distributed import ProcessGroup

from helpers.comm.ledger import note
from helpers.comm.messages import split
from helpers.comm.shared_combine import in_blocks
from helpers.comm.shared_segments import Segments

VIEWS = 128  # lists of views that are kept for later calls of the same kind
EMPTY = (-1, 0)  # where a tensor of no numbers lies
ELSEWHERE = (-2, 0)  # where a tensor lies that is not in shared memory


class Room:
    """The ranks' scratch, and views of what they have in shared memory.

    Args:
        group, timeout: as for Segments.
        half: bytes of a piece.

    Attributes:
        rank, size: this rank's place in the group, and how many there are.
        others: the other ranks, from the right neighbour on: not all read from the same one first.
    """

    def __init__(self, group: ProcessGroup | None, timeout: float, half: int):
        self.segments, self.half = Segments(group, timeout), half
        self.barrier = self.segments.barrier
        self.rank, self.size = self.segments.rank, self.segments.size
        self.group, self.name = self.segments.group, self.segments.group.group_name
        self.others = self.barrier.others
        # Two halves in turn: while a slow rank still reads one, a fast one fills the other. It
        # cannot come to the first again before the slow one has come to the barrier in between.
        self.scratch = self.segments.allocate(2 * half, "the making of SharedMemory")
        self.turn = 0  # which half
        self.views: dict[Hashable, list] = {}

    def place(self, row: torch.Tensor) -> tuple[int, int]:
        """The segment in which the tensor lies, and at which byte."""
        if not row.numel():
            return EMPTY
        return (row.is_contiguous() and self.segments.locate(row)) or ELSEWHERE

    def rows(self, places, sizes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
        """The ranks' numbers at these places, none of them elsewhere."""

        def row(rank: int) -> torch.Tensor:
            segment, offset = places[rank]
            if (segment, offset) == EMPTY:
                return torch.empty(0, dtype=dtype)
            end = offset + sizes[rank] * dtype.itemsize
            return self.segments.segments[segment][rank][offset:end].view(dtype)

        return self.kept(("rows", places, sizes, dtype), lambda: [*map(row, range(self.size))])

    def numbers(self, dtype: torch.dtype) -> int:
        """How many of them a half holds."""
        return self.half // dtype.itemsize

    def halves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """The half of every rank's scratch whose turn it is: (half / bytes of a number,) each."""
        return self.kept(
            ("halves", self.turn, dtype),
            lambda: [part.view(2, self.half)[self.turn].view(dtype) for part in self.scratch],
        )

    def slots(self, numel: int, dtype: torch.dtype) -> list[Sequence[torch.Tensor]]:
        """So many numbers of that half, cut into a chunk for each rank: [whose][for whom]."""
        return self.kept(
            ("slots", self.turn, numel, dtype),
            lambda: [h[:numel].split(split(numel, self.size)) for h in self.halves(dtype)],
        )

    def kept(self, key: Hashable, make: Callable[[], list]) -> list:
        """What `make` returns, from an earlier call if there was one."""
        found = self.views.get(key)
        if found is None:
            if len(self.views) >= VIEWS:
                self.views.clear()
            found = self.views[key] = make()
        return found

    def close(self):
        self.segments.close()
        self.scratch = []
        self.views.clear()


class Call:
    """A collective call: all ranks meet at its beginning; should it fail, the others learn it.

        with Call(room, "broadcast", row, row.nbytes, starts=…, put=…) as call:
            if call.rows is None:
                for piece in call.pieces(): …

    Args:
        row: this rank's buffer, which others read.
        nbytes: S.
        how: what must be the same on all ranks, besides name, S and dtype.
        starts: where the pieces begin; as many on all ranks.
        put: lays this rank's part of the piece that begins there in the half of the scratch whose
            turn it is. What it returns is what `pieces` yields.
        sizes: of the ranks' rows; all as this rank's by default.

    Attributes:
        rows: the ranks' rows; None if not all of them lie in shared memory.
        places, sizes, dtype: of the ranks' rows.
    """

    def __init__(
        self,
        room: Room,
        name: str,
        row: torch.Tensor,
        nbytes: int,
        how: Hashable = "",
        *,
        starts: Sequence[int],
        put: Callable[[int], Any],
        sizes: Sequence[int] | None = None,
    ):
        if row.device.type != "cpu":
            raise ValueError(
                f"memory is shared between CPUs: the tensor must not be on {row.device}"
            )
        self.room, self.name, self.row, self.nbytes, self.how = room, name, row, nbytes, how
        self.starts, self.put, self.dtype = starts, put, row.dtype
        self.sizes = tuple(sizes) if sizes else (row.numel(),) * room.size

    def __enter__(self) -> "Call":
        room, place = self.room, self.room.place(self.row)
        text = words(self.name, self.nbytes, self.dtype, self.how)
        room.barrier.check(text)  # before anything is laid in the scratch
        room.turn = room.segments.turn ^ 1  # as `agree` will have it
        self.first = self.put(self.starts[0]) if place[0] < 0 and self.starts else None
        self.places = room.segments.agree(text, place)
        try:
            note(self.name, group=room.name, ranks=room.size, rank=room.rank, payload=self.nbytes)
            self.rows = None
            if ELSEWHERE not in self.places:
                self.rows = room.rows(self.places, self.sizes, self.dtype)
        except BaseException:
            room.barrier.give_up()
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.room.barrier.give_up()

    def pieces(self) -> Iterator[Any]:
        """What `put` returned, for each piece: every rank's part of it is in its scratch then."""
        room, mixed = self.room, any(segment >= 0 for segment, _ in self.places)
        for number, start in enumerate(self.starts):
            if number:
                room.turn = room.segments.turn = room.turn ^ 1
            if number or mixed:  # those in shared memory did not know that they would be read here
                self.first = self.put(start)
                self.meet()
            yield self.first

    def chunks(self) -> list[Sequence[torch.Tensor]]:
        """This rank's chunk of every rank's row, in blocks: [rank][block]."""

        def make():
            rank, sizes = self.room.rank, split(self.row.numel(), self.room.size)
            return [in_blocks(row.split(sizes)[rank]) for row in self.rows]

        return self.room.kept(("chunks", self.places, self.sizes, self.dtype), make)

    def meet(self):
        """A barrier within the call."""
        self.room.barrier.wait("the end of a collective")


@lru_cache(256)
def words(name: str, nbytes: int, dtype: torch.dtype, how: Hashable) -> str:
    """What a rank calls: the same on all ranks, and readable in an error."""
    how = f", {getattr(how, 'name', how)}" if how != "" else ""
    return f"{name} of {nbytes} bytes, {dtype}{how}"

"""One call of a collective through shared memory: all ranks agree on it, then work piece by piece.

Every rank has a **scratch**: memory through which the other ranks read pieces of its ordinary
tensors. The first piece is in the scratch when the ranks agree on the call. So the call needs only
one barrier for both.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.distributed import ProcessGroup

from helpers.comm.ledger import note
from helpers.comm.messages import split
from helpers.comm.shared_memory.segments import Segments

BLOCK = 1 << 19  # bytes to combine at a time: partial results stay in the processor's cache
VIEWS = 128  # lists of views to keep for later calls of the same kind
EMPTY = (-1, 0)  # the place of a tensor without numbers
ELSEWHERE = (-2, 0)  # the place of a tensor that is not in shared memory


class Room:
    """The ranks' scratch, and views of their shared memory.

    Args:
        group, timeout: as for Segments.
        half: bytes of a piece.

    Attributes:
        rank, size: this rank's place in the group, and the group's size.
        others: the other ranks, from the right neighbour on. So the ranks do not all read from the
            same rank first.
    """

    def __init__(self, group: ProcessGroup | None, timeout: float, half: int):
        self.segments, self.half = Segments(group, timeout), half
        self.barrier = self.segments.barrier
        self.rank, self.size = self.segments.rank, self.segments.size
        self.group, self.name = self.segments.group, self.segments.group.group_name
        self.others = self.barrier.others
        # Two halves in turn: a fast rank fills one half while a slow rank still reads the other.
        # Before the fast rank uses the first half again, both must pass the barrier in between.
        self.scratch = self.segments.allocate(2 * half, "the making of SharedMemory")
        self.turn = 0  # which half
        self.views: dict[Hashable, list] = {}

    def place(self, row: torch.Tensor) -> tuple[int, int]:
        """Return the segment and the byte offset of the tensor."""
        if not row.numel():
            return EMPTY
        return (row.is_contiguous() and self.segments.locate(row)) or ELSEWHERE

    def rows(self, places, sizes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
        """Return the ranks' rows at these places, all of them in shared memory."""

        def row(rank: int) -> torch.Tensor:
            segment, offset = places[rank]
            if (segment, offset) == EMPTY:
                return torch.empty(0, dtype=dtype)
            end = offset + sizes[rank] * dtype.itemsize
            return self.segments.segments[segment][rank][offset:end].view(dtype)

        return self.kept(("rows", places, sizes, dtype), lambda: [*map(row, range(self.size))])

    def numbers(self, dtype: torch.dtype) -> int:
        """Return how many numbers of this dtype fit into a half."""
        return self.half // dtype.itemsize

    def halves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return the current half of every rank's scratch: (half / bytes of a number,) each."""
        return self.kept(
            ("halves", self.turn, dtype),
            lambda: [part.view(2, self.half)[self.turn].view(dtype) for part in self.scratch],
        )

    def slots(self, numel: int, dtype: torch.dtype) -> list[Sequence[torch.Tensor]]:
        """Cut `numel` numbers of the current halves into a chunk per rank: [owner][target]."""
        return self.kept(
            ("slots", self.turn, numel, dtype),
            lambda: [h[:numel].split(split(numel, self.size)) for h in self.halves(dtype)],
        )

    def kept(self, key: Hashable, make: Callable[[], list]) -> list:
        """Return the result of `make`, or of an earlier call with this key."""
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
    """A collective call: all ranks meet at its beginning, and a failure is visible to the others.

        with Call(room, "broadcast", row, row.nbytes, starts=…, put=…) as call:
            if call.rows is None:
                for piece in call.pieces(): …

    Args:
        row: this rank's buffer, which the others read.
        nbytes: S.
        how: any other value that must be the same on all ranks, besides name, S and dtype.
        starts: where the pieces begin; the same number of pieces on all ranks.
        put: copies this rank's part of the piece at this start into the current half of the
            scratch. `pieces` yields what it returns.
        sizes: of the ranks' rows; all as large as this rank's by default.

    A Call whose row is in shared memory can be made again, with the same object.

    Attributes:
        rows: the ranks' rows; None if not all of them are in shared memory.
        places, sizes, dtype: of the ranks' rows.
        place: of this rank's row.
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
            raise ValueError(f"shared memory needs a tensor on the CPU, not on {row.device}")
        self.room, self.name, self.row, self.nbytes = room, name, row, nbytes
        self.starts, self.put, self.dtype = starts, put, row.dtype
        self.sizes = tuple(sizes) if sizes else (row.numel(),) * room.size
        self.text, self.place = words(name, nbytes, row.dtype, how), room.place(row)

    def __enter__(self) -> "Call":
        room = self.room
        room.barrier.check(self.text)  # before anything is written to the scratch
        room.turn = room.segments.turn ^ 1  # the value that `agree` will set
        self.first = self.put(self.starts[0]) if self.place[0] < 0 and self.starts else None
        self.places = room.segments.agree(self.text, self.place)
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
        """Yield the result of `put` for each piece, when every rank's part is in its scratch."""
        room, mixed = self.room, any(segment >= 0 for segment, _ in self.places)
        for number, start in enumerate(self.starts):
            if number:
                room.turn = room.segments.turn = room.turn ^ 1
            if number or mixed:  # ranks in shared memory have not called `put` yet
                self.first = self.put(start)
                self.meet()
            yield self.first

    def chunks(self) -> list[Sequence[torch.Tensor]]:
        """Return this rank's chunk of every rank's row, in blocks: [rank][block]."""

        def make():
            rank, sizes = self.room.rank, split(self.row.numel(), self.room.size)
            return [in_blocks(row.split(sizes)[rank]) for row in self.rows]

        return self.room.kept(("chunks", self.places, self.sizes, self.dtype), make)

    def meet(self):
        """Wait at a barrier within the call."""
        self.room.barrier.wait("the end of a collective")


@lru_cache(256)
def words(name: str, nbytes: int, dtype: torch.dtype, how: Hashable) -> str:
    """Describe the call in words: the same on all ranks, and readable in an error."""
    how = f", {getattr(how, 'name', how)}" if how != "" else ""
    return f"{name} of {nbytes} bytes, {dtype}{how}"


def in_blocks(row: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the row as views of at most `BLOCK` bytes."""
    step = max(1, BLOCK // row.element_size())
    return (row,) if row.numel() <= step else row.split(step)


def combined(
    combine: Callable,
    sources: Sequence[Sequence[torch.Tensor]],
    targets: Sequence[Sequence[torch.Tensor]],
):
    """Combine `sources` in their order, and write the result to every target.

    A target may also be a source.

    Args:
        combine: a function of two tensors, with `out=`.
        sources, targets: rows of equal length, each as returned by `in_blocks`.
    """
    partial = torch.empty_like(sources[0][0]) if len(sources) > 2 else None
    for (so_far, *blocks), (result, *more) in zip(
        zip(*sources, strict=True), zip(*targets, strict=True), strict=True
    ):
        for block in blocks[:-1]:
            so_far = combine(so_far, block, out=partial[: block.numel()])
        # Write to a target only at the end: until then it may be a source.
        if blocks:
            combine(so_far, blocks[-1], out=result)
        elif result.data_ptr() != so_far.data_ptr():
            result.copy_(so_far)
        for target in more:
            target.copy_(result)

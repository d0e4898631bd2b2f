"""Collectives through memory that the ranks of one machine share, as NCCL works inside a node.

    with SharedMemory() as shared:            # every rank of the group, together
        gradients = shared.empty(numel)       # lies in shared memory: all ranks see all of them
        shared.all_reduce(gradients)          # nothing is copied to a socket, nor anywhere
        shared.all_reduce(tensor)             # any other tensor: copied in and out

Where sockets need 2(N-1)/N S bytes through the kernel, here each rank reads what it needs where it
lies. A reduction is shared out: each rank reduces its 1/N of the numbers over all N buffers. NCCL
has the same for GPUs of one node, for buffers registered with a window.

N is the number of ranks in the group, S the bytes of a whole buffer, chunk r the r-th of
`split(numel, N)`. Bytes that one rank reads + writes where the buffers lie in shared memory:

    all_reduce      S + S
    reduce_scatter  S + S/N
    all_gather      S + S
    broadcast       S + S, the source nothing

Ordinary tensors go through a buffer in shared memory, piece by piece. So a rank copies besides
(N-1)/N S into it, and in an all-reduce as much out of it; S/N in an all-gather; the source of a
broadcast S.

No byte is sent: the ledger's `wire` is 0 for these calls, and its `payload` S.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from helpers.comm.collectives import fits, reduction
from helpers.comm.ledger import note
from helpers.comm.messages import in_a_row, split, written_in_a_row
from helpers.comm.shared_segments import Segments

HALF = 1 << 21  # bytes of a plain tensor that a rank puts before the others at a time
BLOCK = 1 << 18  # bytes that are reduced at a time: partial results stay in the cache
TIMEOUT = 1800.0  # seconds, as PyTorch's own
EMPTY = (-1, 0)  # where a tensor of no numbers lies
ELSEWHERE = (-2, 0)  # where a tensor lies that is not in shared memory


class SharedMemory:
    """The memory that the ranks of a group share, and collectives through it.

    All ranks of the group make it together and make the same calls in the same order. Where they
    differ, in the call, the size, the dtype or the operation, all raise a ValueError that says so,
    and nothing is changed. A call may come from any thread, but from one at a time; it lets other
    threads of Python run while it waits and works.

    When a rank ends or fails in the middle of a call, those that wait for it raise `PeerLost`
    within a moment. What they were writing is then undefined, and so is this object of no more use.

    The memory is given back when the last tensor in it is, and at the latest with the ranks,
    however they end. `close` (or the end of the `with`) is no collective call.

    Args:
        group: whose ranks; all by default.
        timeout: seconds to wait for a rank that lives, and does not come.

    Attributes:
        rank, size: this rank's place in the group, and how many there are.

    Raises (each call too):
        PeerLost: another rank has ended or failed. Its `rank` says which.
        TimeoutError: a rank lives, and does not come.
        ValueError: the ranks are not on one machine, or differ in what they call; this one is not
            in the group; the tensor is not on the CPU.
        OSError: this is not Linux, or there is no memory.
    """

    def __init__(self, group: ProcessGroup | None = None, *, timeout: float = TIMEOUT):
        self.segments = Segments(group, timeout)
        self.group, self.rank, self.size = (
            getattr(self.segments, a) for a in ("group", "rank", "size")
        )
        # Two halves in turn: while a slow rank still reads one, a fast one fills the other. It
        # cannot come to the first again before the slow one has come to the barrier in between.
        self.scratch = self.segments.allocate(2 * HALF, "the making of SharedMemory")
        self.turn = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Let go of the memory. Tensors in it can be used as before, but not reduced in place."""
        self.segments.close()
        self.scratch = []

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor in shared memory, zeros at first; each rank gets one, all of this shape.

        A collective on it, or on a contiguous part of it, copies nothing.
        """
        like = torch.empty(shape, dtype=dtype, device="meta")
        what = f"empty({tuple(like.shape)}, {dtype})"
        part = self.segments.allocate(like.nbytes, what)[self.rank]
        return part[: like.nbytes].view(dtype).view(like.shape)

    def peers(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What the ranks have where this rank has `tensor`, as views in the group's order.

        So an all-gather may move nothing at all: `barrier`, read, `barrier`. No collective call.

        Raises:
            ValueError: `tensor` is not a contiguous part of a tensor made by `empty`.
        """
        place = self.place(tensor)
        if place == ELSEWHERE:
            raise ValueError("the tensor is not in this shared memory: make it with empty()")
        rows = self.rows(tensor, [place] * self.size, [tensor.numel()] * self.size)
        return [row.view(tensor.shape) for row in rows]

    def barrier(self):
        """Wait until every rank has come here; it sees then what the others wrote before."""
        self.segments.agree("barrier")

    def all_reduce(self, tensor: torch.Tensor, op=ReduceOp.SUM):
        """Reduce over the ranks, in place, on every rank. Each number is combined in order of rank,
        by one rank, so all ranks hold the same bits; bf16 and fp16 are rounded after each rank.

        Args:
            tensor: any shape, the same number of numbers on all ranks.
            op: SUM, PRODUCT, MIN, MAX, or BAND, BOR, BXOR of whole numbers.
        """
        combine = reduction(op, tensor)
        with written_in_a_row(tensor) as row, self.call("all_reduce", row, row, op) as rows:
            if rows is not None:
                own = [other[self.chunk(row.numel())] for other in rows]
                combined(combine, own, own)  # nobody else touches these numbers
                self.meet()
                return
            for piece in row.split(HALF // row.element_size()):
                sizes = split(piece.numel(), self.size)
                mine = piece.split(sizes)
                slots = [slot[: piece.numel()].split(sizes) for slot in self.halves(row.dtype)]
                for rank in self.others():
                    slots[self.rank][rank].copy_(mine[rank])
                self.meet()
                result = slots[self.rank][self.rank]
                sources = [slot[self.rank] for slot in slots]
                sources[self.rank] = mine[self.rank]
                combined(combine, sources, [result, mine[self.rank]])
                self.meet()
                for rank in self.others():
                    mine[rank].copy_(slots[rank][rank])

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op=ReduceOp.SUM):
        """Reduce over the ranks, and leave on each rank its chunk of the result.

        Args:
            output: `split(numel, N)[rank]` numbers in any shape. It may be that chunk of `input`,
                and no other part of it.
            input: numel numbers in any shape; if it is in shared memory, nothing is copied.
            op: as for `all_reduce`.

        Raises:
            ValueError: `output` has another size or dtype.
        """
        combine = reduction(op, input)
        sizes = split(input.numel(), self.size)
        fits("output", output, sizes[self.rank], input.dtype)
        row = in_a_row(input)
        with (
            written_in_a_row(output) as result,
            self.call("reduce_scatter", row, row, op) as rows,
        ):
            if rows is not None:
                combined(combine, [other[self.chunk(row.numel())] for other in rows], [result])
                self.meet()
                return
            mine, step = row.split(sizes), max(1, HALF // row.element_size() // self.size)
            for start in range(0, sizes[0], step):
                pieces = [chunk[start : start + step] for chunk in mine]
                slots = [slot.split(step) for slot in self.halves(row.dtype)]
                for rank in self.others():
                    slots[self.rank][rank][: pieces[rank].numel()].copy_(pieces[rank])
                self.meet()
                own = pieces[self.rank]
                sources = [slot[self.rank][: own.numel()] for slot in slots]
                sources[self.rank] = own
                combined(combine, sources, [result[start : start + step]])

    def all_gather(self, output: torch.Tensor, input: torch.Tensor):
        """Put the ranks' chunks together, on every rank.

        Args:
            output: numel numbers in any shape.
            input: `split(numel, N)[rank]` numbers in any shape; if it is in shared memory, nothing
                is copied but into `output`. It may be that chunk of `output`.

        Raises:
            ValueError: `input` has another size or dtype.
        """
        sizes = split(output.numel(), self.size)
        fits("input", input, sizes[self.rank], output.dtype)
        row = in_a_row(input)
        with (
            written_in_a_row(output) as whole,
            self.call("all_gather", row, whole, sizes=sizes) as rows,
        ):
            result = whole.split(sizes)
            if result[self.rank].data_ptr() != row.data_ptr():
                result[self.rank].copy_(row)
            if rows is not None:
                for rank in self.others():
                    result[rank].copy_(rows[rank])
                self.meet()
                return
            step = HALF // row.element_size()
            for start in range(0, sizes[0], step):
                halves = self.halves(row.dtype)
                piece = row[start : start + step]
                halves[self.rank][: piece.numel()].copy_(piece)
                self.meet()
                for rank in self.others():
                    piece = result[rank][start : start + step]
                    piece.copy_(halves[rank][: piece.numel()])

    def broadcast(self, tensor: torch.Tensor, src: int = 0):
        """Copy the source's tensor to every rank, in place.

        Args:
            tensor: any shape, the same number of numbers on all ranks.
            src: the source, as a rank of the world, as in `dist.broadcast`.

        Raises:
            ValueError: `src` is not in the group.
        """
        ranks = dist.get_process_group_ranks(self.group)
        if src not in ranks:
            raise ValueError(f"rank {src} cannot be the source: the group is {ranks}")
        source = ranks.index(src)
        with (
            written_in_a_row(tensor) as row,
            self.call("broadcast", row, row, f"from rank {src}") as rows,
        ):
            if rows is not None:
                if self.rank != source:
                    row.copy_(rows[source])
                self.meet()
                return
            for piece in row.split(HALF // row.element_size()):
                half = self.halves(row.dtype)[source][: piece.numel()]
                if self.rank == source:
                    half.copy_(piece)
                self.meet()
                if self.rank != source:
                    piece.copy_(half)

    @contextmanager
    def call(self, name, row, whole, how="", sizes=None) -> Iterator[list[torch.Tensor] | None]:
        """A collective call: all ranks meet at its beginning; should it fail, the others learn it.

        Args:
            row: this rank's buffer, which others read.
            whole: of S bytes.
            how: what must be the same on all ranks, besides name, S and dtype.
            sizes: of the ranks' rows; all as this rank's by default.

        Yields:
            The ranks' rows. None if not all of them lie in shared memory.
        """
        if row.device.type != "cpu":
            raise ValueError(
                f"memory is shared between CPUs: the tensor must not be on {row.device}"
            )
        how = f", {getattr(how, 'name', how)}" if how else ""
        places = self.segments.agree(
            f"{name} of {whole.nbytes} bytes, {row.dtype}{how}", self.place(row)
        )
        note(
            name, group=self.group.group_name, ranks=self.size, rank=self.rank, payload=whole.nbytes
        )
        try:
            yield self.rows(row, places, sizes or [row.numel()] * self.size)
        except BaseException:
            self.segments.barrier.give_up()
            raise

    def place(self, row: torch.Tensor) -> tuple[int, int]:
        """The segment in which the tensor lies, and at which byte."""
        if not row.numel():
            return EMPTY
        return (row.is_contiguous() and self.segments.locate(row)) or ELSEWHERE

    def rows(self, row, places, sizes) -> list[torch.Tensor] | None:
        """The ranks' numbers at these places."""
        if ELSEWHERE in places:
            return None
        found = []
        for rank, (segment, offset) in enumerate(places):
            if (segment, offset) == EMPTY:
                found.append(row[:0])
            else:
                part = self.segments.segments[segment][rank]
                end = offset + sizes[rank] * row.element_size()
                found.append(part[offset:end].view(row.dtype))
        return found

    def chunk(self, numel: int) -> slice:
        """This rank's chunk of so many numbers."""
        sizes = split(numel, self.size)
        start = sum(sizes[: self.rank])
        return slice(start, start + sizes[self.rank])

    def meet(self):
        """A barrier within a call."""
        self.segments.barrier.wait("the end of a collective")

    def halves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """The next half of every rank's scratch: (HALF / bytes of a number,) each."""
        self.turn ^= 1
        return [part.view(2, HALF)[self.turn].view(dtype) for part in self.scratch]

    def others(self) -> list[int]:
        """From the right neighbour on, so that not all read from the same rank at once."""
        return self.segments.barrier.others


def combined(combine: Callable, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]):
    """Write `sources`, combined in their order, to every target; a target may be a source."""
    numel, step = sources[0].numel(), max(1, BLOCK // sources[0].element_size())
    partial = torch.empty_like(sources[0][:step]) if len(sources) > 2 else None
    for start in range(0, numel, step):
        end = min(start + step, numel)
        so_far, *blocks = (source[start:end] for source in sources)
        result, *more = (target[start:end] for target in targets)
        for block in blocks[:-1]:
            so_far = combine(so_far, block, out=partial[: end - start])
        # Only the last is written to a target: until then that may be a source to be read.
        if blocks:
            combine(so_far, blocks[-1], out=result)
        elif result.data_ptr() != so_far.data_ptr():
            result.copy_(so_far)
        for target in more:
            target.copy_(result)

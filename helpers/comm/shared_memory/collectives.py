"""Collectives through memory that the ranks of one machine share, as NCCL works inside a node.

    with SharedMemory() as shared:            # every rank of the group, together
        gradients = shared.empty(numel)       # in shared memory: all ranks see all of them
        shared.all_reduce(gradients)          # copies nothing
        shared.all_reduce(tensor)             # any other tensor: copied in and out

Over sockets, 2(N-1)/N S bytes go through the kernel. Here each rank reads the numbers directly from
the other ranks' memory. The ranks share the work of a reduction: each rank reduces 1/N of the
numbers, over all N buffers. NCCL does the same for the GPUs of a node, if the buffers are
registered with a window.

N is the number of ranks in the group, S the bytes of a whole buffer, chunk r the r-th of
`split(numel, N)`. One rank reads + writes these bytes if the buffers are in shared memory:

    all_reduce      S + S
    reduce_scatter  S + S/N
    all_gather      S + S
    broadcast       S + S, the source nothing

Ordinary tensors go through a buffer in shared memory, piece by piece. So a rank also copies (N-1)/N
S into that buffer, and in an all-reduce as much out of it. In an all-gather it copies S/N, and the
source of a broadcast copies S.

No byte is sent: the ledger's `wire` is 0 for these calls, and its `payload` is S.
"""

from collections.abc import Callable, Hashable, Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from helpers.comm.collectives import fits, reduction
from helpers.comm.messages import in_a_row, split, written_in_a_row
from helpers.comm.shared_memory.calls import VIEWS, Call, Room, combined, in_blocks

HALF = 1 << 21  # bytes of an ordinary tensor that a rank shows to the others at a time
TIMEOUT = 1800.0  # seconds, as in PyTorch


class SharedMemory:
    """The memory that the ranks of a group share, and collectives through it.

    All ranks of the group make it together, and make the same calls in the same order. If the ranks
    differ in the call, the size, the dtype or the operation, all of them raise a ValueError, and no
    tensor changes. Calls may use any thread, but one thread at a time. Other Python threads can run
    while a call waits and works.

    If a rank ends or fails during a call, the ranks that wait for it soon raise `PeerLost`. Their
    output is then undefined, and this object is no longer usable.

    The memory is freed together with the last tensor in it, and at the latest with the ranks'
    processes, however they end. `close` (or the end of the `with`) is not a collective call.

    Args:
        group: of the ranks; all ranks by default.
        timeout: seconds to wait for a rank that is alive but does not make the call.

    Attributes:
        rank, size: this rank's place in the group, and the group's size.

    Raises (each call too):
        PeerLost: another rank ended or failed. Its `rank` names that rank.
        TimeoutError: a rank is alive, but did not make the call in time.
        ValueError: the ranks are not on one machine, or make different calls; this rank is not in
            the group; the tensor is not on the CPU.
        OSError: the system is not Linux, or memory is short.
    """

    def __init__(self, group: ProcessGroup | None = None, *, timeout: float = TIMEOUT):
        self.room = Room(group, timeout, HALF)
        self.group, self.rank, self.size = self.room.group, self.room.rank, self.room.size
        # Calls in shared memory, to be made again. They know the room, so the room keeps none: in a
        # circle, memory would not be freed with its last tensor.
        self.calls: dict[Hashable, Call] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Release the memory. Tensors in it remain usable, but not for collectives."""
        self.calls.clear()
        self.room.close()

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor in shared memory, zeros at first. Each rank gets its own of this shape.

        A collective on this tensor, or on a contiguous part of it, copies nothing.
        """
        like = torch.empty(shape, dtype=dtype, device="meta")
        what = f"empty({tuple(like.shape)}, {dtype})"
        part = self.room.segments.allocate(like.nbytes, what)[self.rank]
        return part[: like.nbytes].view(dtype).view(like.shape)

    def barrier(self):
        """Wait for every rank. Afterwards this rank sees what the others wrote before."""
        self.room.segments.agree("barrier")

    def all_reduce(self, tensor: torch.Tensor, op=ReduceOp.SUM):
        """Reduce over the ranks, in place, on every rank.

        One rank combines each number, in the order of the ranks, so all ranks get the same bits. In
        bf16 and fp16 each combination is rounded.

        Args:
            tensor: any shape, the same number of numbers on all ranks.
            op: SUM, PRODUCT, MIN, MAX, or BAND, BOR, BXOR for integers.
        """
        combine, room, rank, size = reduction(op, tensor), self.room, self.rank, self.size
        key = memory(tensor), op
        if call := self.calls.get(key):
            self.reduced(call, combine)
            return
        with written_in_a_row(tensor) as row:
            step = room.numbers(row.dtype)

            def put(start):
                piece = row[start : start + step]
                mine = piece.split(split(piece.numel(), size))
                slots = room.slots(piece.numel(), row.dtype)
                for other in room.others:
                    slots[rank][other].copy_(mine[other])
                return mine, slots

            starts = range(0, row.numel(), step)
            call = Call(room, "all_reduce", row, row.nbytes, op, starts=starts, put=put)
            self.reduced(call, combine)
        if call.place[0] >= 0:  # a training step reduces the same memory again and again
            if len(self.calls) >= VIEWS:
                self.calls.clear()
            self.calls[key] = call

    def reduced(self, call: Call, combine: Callable):
        rank, others = self.rank, self.room.others
        with call:
            if call.rows is not None:
                chunks = call.chunks()
                combined(combine, chunks, chunks)  # no other rank uses these numbers
                call.meet()
                return
            for mine, slots in call.pieces():
                sources = [in_blocks(slot[rank]) for slot in slots]
                sources[rank] = own = in_blocks(mine[rank])
                combined(combine, sources, [in_blocks(slots[rank][rank]), own])
                call.meet()
                for other in others:
                    mine[other].copy_(slots[other][other])

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op=ReduceOp.SUM):
        """Reduce over the ranks, and leave on each rank its chunk of the result.

        Args:
            output: `split(numel, N)[rank]` numbers in any shape. It may be this rank's chunk of
                `input`, but no other part of `input`.
            input: numel numbers in any shape; if it is in shared memory, nothing is copied.
            op: as for `all_reduce`.

        Raises:
            ValueError: `output` has another size or dtype.
        """
        combine, rank, room = reduction(op, input), self.rank, self.room
        sizes = split(input.numel(), self.size)
        fits("output", output, sizes[rank], input.dtype)
        row = in_a_row(input)
        with written_in_a_row(output) as result:
            step = max(1, room.numbers(row.dtype) // self.size)

            def put(start):
                chunks = row.split(sizes)
                slots = [half.split(step) for half in room.halves(row.dtype)]
                for other in room.others:
                    piece = chunks[other][start : start + step]
                    slots[rank][other][: piece.numel()].copy_(piece)
                return start, chunks[rank][start : start + step], slots

            starts = range(0, sizes[0], step)
            with Call(room, "reduce_scatter", row, row.nbytes, op, starts=starts, put=put) as call:
                if call.rows is not None:
                    combined(combine, call.chunks(), [in_blocks(result)])
                    call.meet()
                    return
                for start, own, slots in call.pieces():
                    sources = [in_blocks(slot[rank][: own.numel()]) for slot in slots]
                    sources[rank] = in_blocks(own)
                    combined(combine, sources, [in_blocks(result[start : start + step])])

    def all_gather(self, output: torch.Tensor, input: torch.Tensor):
        """Gather every rank's chunk into the full buffer, on every rank.

        Args:
            output: numel numbers in any shape.
            input: `split(numel, N)[rank]` numbers in any shape. If it is in shared memory, it is
                copied only to `output`. It may be this rank's chunk of `output`.

        Raises:
            ValueError: `input` has another size or dtype.
        """
        rank, room, sizes = self.rank, self.room, split(output.numel(), self.size)
        fits("input", input, sizes[rank], output.dtype)
        row = in_a_row(input)
        with written_in_a_row(output) as whole:
            result, step = whole.split(sizes), room.numbers(row.dtype)

            def put(start):
                halves, piece = room.halves(row.dtype), row[start : start + step]
                halves[rank][: piece.numel()].copy_(piece)
                return start, halves

            starts, nbytes = range(0, sizes[0], step), whole.nbytes
            with Call(room, "all_gather", row, nbytes, starts=starts, put=put, sizes=sizes) as call:
                if result[rank].data_ptr() != row.data_ptr():
                    result[rank].copy_(row)
                if call.rows is not None:
                    for other in room.others:
                        result[other].copy_(call.rows[other])
                    call.meet()
                    return
                for start, halves in call.pieces():
                    for other in room.others:
                        piece = result[other][start : start + step]
                        piece.copy_(halves[other][: piece.numel()])

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
            raise ValueError(f"rank {src} cannot be the source: it is not in the group {ranks}")
        source, room = ranks.index(src), self.room
        with written_in_a_row(tensor) as row:
            step = room.numbers(row.dtype)

            def put(start):
                piece = row[start : start + step]
                half = room.halves(row.dtype)[source][: piece.numel()]
                if self.rank == source:
                    half.copy_(piece)
                return piece, half

            starts, how = range(0, row.numel(), step), f"from rank {src}"
            with Call(room, "broadcast", row, row.nbytes, how, starts=starts, put=put) as call:
                if call.rows is not None:
                    if self.rank != source:
                        row.copy_(call.rows[source])
                    call.meet()
                    return
                for piece, half in call.pieces():
                    if self.rank != source:
                        piece.copy_(half)


def memory(tensor: torch.Tensor) -> Hashable:
    """Return which numbers a tensor has in memory; None if not these, or not in their order."""
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return None
    return tensor.data_ptr(), tensor.numel(), tensor.dtype, tensor.device

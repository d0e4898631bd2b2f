"""Collectives built from messages, each by the algorithm in its name.

They take any dtype, any number of elements and any group. Each writes only into its first argument,
as PyTorch's does. Every rank of the group makes the same calls in the same order, with buffers of
the same dtype and size. On a rank outside the group they raise a ValueError.

N is the number of ranks in the group, and S the bytes of the whole buffer. Chunk r is the r-th
chunk of `split(numel, N)`; it belongs to rank r. Each rank sends:

    ring_reduce_scatter             N-1 steps          (N-1)/N S
    ring_all_gather                 N-1 steps          (N-1)/N S
    ring_all_reduce                 2(N-1) steps       2(N-1)/N S
    recursive_doubling_all_reduce   log2 N steps       S log2 N
    tree_broadcast                  ceil(log2 N) steps S ceil(log2 N) at the source, 0 at the leaves
    pairwise_all_to_all             N-1 steps          all but its own part

Papers: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH", IJHPCA 19(1), 2005; Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", JPDC 69(2), 2009.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from helpers.comm.messages import Peers, in_a_row, split, written_in_a_row

REDUCTIONS = {
    ReduceOp.SUM: torch.add,  # for bool: any
    ReduceOp.PRODUCT: torch.mul,  # for bool: all
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def ring_reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,
    op=ReduceOp.SUM,
    group: ProcessGroup | None = None,
):
    """Reduce over the ranks, and leave on each rank its chunk of the result.

    The partial result of a chunk travels once around the ring, and each rank adds its own numbers.
    Chunk r starts at rank r+1 and ends at rank r. So every chunk is summed in one order, by one
    chain of ranks. In bf16 and fp16 each step rounds the partial result.

    Steps: N-1. Each rank sends every chunk but its own: (N-1)/N S. With messages between ranks, no
    algorithm sends less. (gloo's own `reduce_scatter_tensor` sends 2(N-1)/N S.) A rank needs memory
    for two more chunks.

    Args:
        output: `split(numel, N)[rank]` numbers in any shape.
        input: numel numbers in any shape; not changed.
        op: SUM, PRODUCT, MIN, MAX, or BAND, BOR, BXOR for integers.

    Raises:
        ValueError: `output` has another size or dtype; `op` is not one of these.

    Source: Patarasuk and Yuan 2009, the first half of their all-reduce.
    """
    combine, peers = reduction(op, input), Peers(group)
    sizes = split(input.numel(), peers.size)
    fits("output", output, sizes[peers.rank], input.dtype)
    chunks = in_a_row(input).split(sizes)
    with written_in_a_row(output) as row:
        # A received chunk must not overwrite the chunk being sent: use two buffers in turn.
        buffers = [torch.empty_like(chunks[0]) for _ in range(2)]  # chunk 0 is the largest
        partial = chunks[peers.left]
        for step in range(peers.size - 1):
            own = chunks[(peers.rank - 2 - step) % peers.size]
            coming = buffers[step % 2][: own.numel()]
            peers.exchange(partial, peers.right, coming, peers.left)
            partial = combine(coming, own, out=coming)
        row.copy_(partial)


def ring_all_gather(output: torch.Tensor, input: torch.Tensor, group: ProcessGroup | None = None):
    """Gather every rank's chunk into the full buffer, on every rank.

    In each step a rank sends to the right the chunk that it last received from the left. It starts
    with its own chunk.

    Steps: N-1. Each rank sends every chunk but its right neighbour's: (N-1)/N S.

    Args:
        output: numel numbers in any shape.
        input: `split(numel, N)[rank]` numbers in any shape; not changed.

    Raises:
        ValueError: `input` has another size or dtype.

    Source: Thakur et al. 2005, allgather, by the ring.
    """
    peers = Peers(group)
    sizes = split(output.numel(), peers.size)
    fits("input", input, sizes[peers.rank], output.dtype)
    with written_in_a_row(output) as row:
        chunks = row.split(sizes)
        chunks[peers.rank].copy_(in_a_row(input))
        for step in range(peers.size - 1):
            going = chunks[(peers.rank - step) % peers.size]
            coming = chunks[(peers.rank - step - 1) % peers.size]
            peers.exchange(going, peers.right, coming, peers.left)


def ring_all_reduce(tensor: torch.Tensor, op=ReduceOp.SUM, group: ProcessGroup | None = None):
    """Reduce over the ranks, in place, on every rank: a reduce-scatter, then an all-gather.

    Every chunk is summed once and then copied, so all ranks get the same bits.

    Steps: 2(N-1). Each rank sends 2(N-1)/N S. With messages between ranks, no algorithm sends less,
    and the number hardly grows with N. But the number of steps grows with N: for small buffers
    recursive doubling is faster.

    Args:
        tensor: any shape; replaced by the result.
        op: as for `ring_reduce_scatter`.

    Source: Patarasuk and Yuan 2009.
    """
    peers = Peers(group)
    with written_in_a_row(tensor) as row:
        own = row.split(split(row.numel(), peers.size))[peers.rank]
        ring_reduce_scatter(own, row, op, group)  # it writes `own` at the end, after reading it
        ring_all_gather(row, own, group)


def recursive_doubling_all_reduce(
    tensor: torch.Tensor, op=ReduceOp.SUM, group: ProcessGroup | None = None
):
    """Reduce over the ranks, in place, on every rank: few steps, for small buffers.

    A rank exchanges its whole buffer with the rank at distance 1, then 2, then 4. Each exchange
    doubles the number of ranks whose numbers are in the result. This needs a power of two: let P be
    the largest power of two up to N, and R = N - P. The first 2R ranks form pairs. The even rank of
    a pair sends its buffer to the odd rank, pauses, and receives the result at the end.

    Both ranks of an exchange combine in the order of their ranks, so all ranks get the same bits.
    The order matters: a product of complex numbers, once rounded, is not exactly commutative.

    Steps: log2 N, or log2 P + 2. Each rank sends S log2 P. Of a pair, the even rank sends S, and
    the odd rank S more than the others. A rank needs memory for a second such buffer.

    Args:
        tensor: any shape; replaced by the result.
        op: as for `ring_reduce_scatter`.

    Source: Thakur et al. 2005, allreduce of short messages.
    """
    combine, peers = reduction(op, tensor), Peers(group)
    power = 1 << (peers.size.bit_length() - 1)  # P
    pairs = peers.size - power  # R
    in_pair, even = peers.rank < 2 * pairs, peers.rank % 2 == 0
    with written_in_a_row(tensor) as row:
        if in_pair and even:
            peers.exchange(send=row, to=peers.rank + 1)
            peers.exchange(receive=row, source=peers.rank + 1)
            return
        theirs = torch.empty_like(row)
        if in_pair:
            peers.exchange(receive=theirs, source=peers.rank - 1)
            combine(theirs, row, out=row)
        place = peers.rank // 2 if in_pair else peers.rank - pairs  # among the P that continue
        distance = 1
        while distance < power:
            other = place ^ distance
            peer = 2 * other + 1 if other < pairs else other + pairs
            peers.exchange(row, peer, theirs, peer)
            combine(*((row, theirs) if place < other else (theirs, row)), out=row)
            distance *= 2
        if in_pair:
            peers.exchange(send=row, to=peers.rank - 1)


def tree_broadcast(tensor: torch.Tensor, src: int = 0, group: ProcessGroup | None = None):
    """Copy the source's tensor to every rank, in place, along a binomial tree.

    In each step every rank that has the tensor sends it to a rank that lacks it. So 1, 2, 4, …
    ranks have the tensor.

    Steps: ceil(log2 N). All ranks together send (N-1) S. The source sends S ceil(log2 N). The rank
    at distance d from the source sends S for each power of two above d with d + power < N. Half of
    the ranks send nothing.

    Args:
        tensor: any shape, the same on all ranks.
        src: the source, as a rank of the world, as in `dist.broadcast`.

    Raises:
        ValueError: `src` is not in the group.

    Source: Thakur et al. 2005, broadcast of short messages.
    """
    peers = Peers(group)
    ranks = dist.get_process_group_ranks(peers.group)
    if src not in ranks:
        raise ValueError(f"rank {src} cannot be the source: it is not in the group {ranks}")
    source = ranks.index(src)
    away = (peers.rank - source) % peers.size  # distance from the source
    with written_in_a_row(tensor) as row:
        have = 1  # the ranks at distance 0 … have-1 have the tensor
        while have < peers.size:
            if away < have and away + have < peers.size:
                peers.exchange(send=row, to=(peers.rank + have) % peers.size)
            elif have <= away < 2 * have:
                peers.exchange(receive=row, source=(peers.rank - have) % peers.size)
            have *= 2


def pairwise_all_to_all(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    group: ProcessGroup | None = None,
):
    """Send `inputs[d]` to every rank d, and receive `outputs[s]` from every rank s.

    In step k each rank sends to the rank k places to the right and receives from the rank k places
    to the left. So no rank receives from two ranks at the same time.

    Steps: N-1. Each rank sends all its inputs but its own: (N-1)/N S if they are equal.

    Args:
        outputs, inputs: N tensors each, in the group's order. Sizes may differ, and may be 0. The
            input of rank s for rank d must have the dtype and the number of elements of the output
            on rank d for rank s. Pieces of one buffer are fine: `list(buffer.split(sizes))`.

    Raises:
        ValueError: a list does not have N tensors; this rank's own input and output differ in size
            or dtype.

    Source: Thakur et al. 2005, all-to-all of long messages.
    """
    peers = Peers(group)
    for name, parts in (("outputs", outputs), ("inputs", inputs)):
        if len(parts) != peers.size:
            raise ValueError(
                f"{len(parts)} {name} for {peers.size} ranks: pass one tensor per rank"
            )
    own = inputs[peers.rank]
    fits(f"outputs[{peers.rank}]", outputs[peers.rank], own.numel(), own.dtype)
    with written_in_a_row(outputs[peers.rank]) as row:
        row.copy_(in_a_row(own))
    for step in range(1, peers.size):
        to, source = (peers.rank + step) % peers.size, (peers.rank - step) % peers.size
        with written_in_a_row(outputs[source]) as row:
            peers.exchange(in_a_row(inputs[to]), to, row, source)


def reduction(op, tensor: torch.Tensor) -> Callable:
    """Return the function that combines two partial results."""
    if op not in REDUCTIONS:
        names = ", ".join(known.name for known in REDUCTIONS)
        raise ValueError(f"{op} is not supported, only {names}; for a mean, use SUM and divide")
    if tensor.is_complex() and op not in (ReduceOp.SUM, ReduceOp.PRODUCT):
        raise ValueError(f"complex numbers have no {op.name}: use SUM or PRODUCT")
    return REDUCTIONS[op]


def fits(name: str, tensor: torch.Tensor, numel: int, dtype: torch.dtype):
    """Check a buffer's size here; a wrong message would fail in the middle, on another rank."""
    if tensor.numel() != numel or tensor.dtype != dtype:
        raise ValueError(
            f"{name} must have {numel} numbers of {dtype}, not {tensor.numel()} of {tensor.dtype}"
        )

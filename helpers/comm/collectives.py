"""Collectives written from messages, each by the algorithm that its name says.

They take any dtype, any number of elements and any group, and write where torch's would: into the
first argument, and nowhere else. Every rank of the group calls them, in the same order, with
buffers of the same dtype and size. On a rank outside the group they raise a ValueError.

N is the number of ranks in the group, S the bytes of the whole buffer, chunk r the r-th of
`split(numel, N)`: the one of rank r. What one rank sends:

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
    ReduceOp.SUM: torch.add,  # of truth values: any
    ReduceOp.PRODUCT: torch.mul,  # of truth values: all
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

    A chunk's partial result travels once around the ring, and each rank adds its own numbers: chunk
    r sets out from rank r+1 and ends on rank r. So a chunk is added up in one order, by one chain
    of ranks. In bf16 and fp16 the partial results are rounded at each step.

    Steps: N-1. Each rank sends every chunk but its own: (N-1)/N S, the least there can be. (gloo's
    own `reduce_scatter_tensor` sends 2(N-1)/N S.) Beside its arguments a rank holds two chunks.

    Args:
        output: `split(numel, N)[rank]` numbers in any shape.
        input: numel numbers in any shape. Left as it is.
        op: SUM, PRODUCT, MIN, MAX, or BAND, BOR, BXOR of whole numbers.

    Raises:
        ValueError: `output` has another size or dtype; the operation is not one of these.

    Source: Patarasuk and Yuan 2009, the first half of their all-reduce.
    """
    combine, peers = reduction(op, input), Peers(group)
    sizes = split(input.numel(), peers.size)
    fits("output", output, sizes[peers.rank], input.dtype)
    chunks = in_a_row(input).split(sizes)
    with written_in_a_row(output) as row:
        # What comes in must not overwrite what is going out: two buffers, in turn.
        buffers = [torch.empty_like(chunks[0]) for _ in range(2)]  # chunk 0 is the largest
        partial = chunks[peers.left]
        for step in range(peers.size - 1):
            own = chunks[(peers.rank - 2 - step) % peers.size]
            coming = buffers[step % 2][: own.numel()]
            peers.exchange(partial, peers.right, coming, peers.left)
            partial = combine(coming, own, out=coming)
        row.copy_(partial)


def ring_all_gather(output: torch.Tensor, input: torch.Tensor, group: ProcessGroup | None = None):
    """Put the ranks' chunks together, on every rank.

    Each rank passes on to the right what it received last from the left, and starts with its own.

    Steps: N-1. Each rank sends every chunk but its right neighbour's: (N-1)/N S.

    Args:
        output: numel numbers in any shape.
        input: `split(numel, N)[rank]` numbers in any shape. Left as it is.

    Raises:
        ValueError: `input` has another size or dtype.

    Source: Thakur et al. 2005, section 4, allgather, by the ring.
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

    Every chunk is added up once and then copied, so all ranks hold the same bits.

    Steps: 2(N-1). Each rank sends 2(N-1)/N S, the least there can be: hardly more with many ranks
    than with few. The steps grow with N: for small buffers recursive doubling is faster.

    Args:
        tensor: any shape; the result takes its place.
        op: as for `ring_reduce_scatter`.

    Source: Patarasuk and Yuan 2009.
    """
    peers = Peers(group)
    with written_in_a_row(tensor) as row:
        own = row.split(split(row.numel(), peers.size))[peers.rank]
        ring_reduce_scatter(own, row, op, group)  # writes `own` last, when it has been read
        ring_all_gather(row, own, group)


def recursive_doubling_all_reduce(
    tensor: torch.Tensor, op=ReduceOp.SUM, group: ProcessGroup | None = None
):
    """Reduce over the ranks, in place, on every rank: few steps, for small buffers.

    Each rank exchanges its whole buffer with the one at distance 1, then 2, then 4; after each
    exchange it holds the result of twice as many. This needs a power of two. With N = P + R ranks,
    P the nearest power of two below, the first 2R make pairs: the even one gives its numbers to
    the odd one, sits out, and is told the result.

    Both of an exchange combine in the order of rank, so that all ranks hold the same bits: a
    product of complex numbers, once rounded, is not quite the same from left and from right.

    Steps: log2 N, or log2 P + 2. Each rank sends S log2 P; of a pair, the even one S, the odd one S
    more than the others. Beside its argument a rank holds a second such buffer.

    Args:
        tensor: any shape; the result takes its place.
        op: as for `ring_reduce_scatter`.

    Source: Thakur et al. 2005, section 4, allreduce of short messages.
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
            combine(row, theirs, out=row)
        place = peers.rank // 2 if in_pair else peers.rank - pairs  # among the P that go on
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

    In each step every rank that has it sends it to one that has not: 1, 2, 4, … ranks have it.

    Steps: ceil(log2 N). All ranks together send (N-1) S: the source ceil(log2 N) S, and the rank at
    distance d from it S for each power of two above d with d + power < N: half of them nothing.

    Args:
        tensor: any shape, the same on all ranks.
        src: the source, as a rank of the world, as in `dist.broadcast`.

    Raises:
        ValueError: `src` is not in the group.

    Source: Thakur et al. 2005, section 4, broadcast of short messages.
    """
    peers = Peers(group)
    ranks = dist.get_process_group_ranks(peers.group)
    if src not in ranks:
        raise ValueError(f"rank {src} cannot be the source: the group is {ranks}")
    source = ranks.index(src)
    away = (peers.rank - source) % peers.size  # how far from the source
    with written_in_a_row(tensor) as row:
        have = 1  # the ranks at 0 … have-1 have it
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
    """Each rank has a part for every rank: `inputs[d]` goes to rank d, `outputs[s]` comes from s.

    In step k each rank sends to the one k to the right and receives from the one k to the left, so
    that nobody receives from two at once.

    Steps: N-1. Each rank sends all its inputs but its own: (N-1)/N S if they are equal.

    Args:
        outputs, inputs: N tensors each, in the group's order. Sizes may differ, and be 0; what rank
            s has for d must have the dtype and the number of elements that d expects from s. Pieces
            of one buffer do: `list(buffer.split(sizes))`.

    Raises:
        ValueError: there are more or fewer than N; what stays on this rank has two sizes.

    Source: Thakur et al. 2005, section 4, all-to-all of long messages.
    """
    peers = Peers(group)
    for name, parts in (("outputs", outputs), ("inputs", inputs)):
        if len(parts) != peers.size:
            raise ValueError(f"{len(parts)} {name} for {peers.size} ranks: one for each")
    own = inputs[peers.rank]
    fits(f"outputs[{peers.rank}]", outputs[peers.rank], own.numel(), own.dtype)
    with written_in_a_row(outputs[peers.rank]) as row:
        row.copy_(in_a_row(own))
    for step in range(1, peers.size):
        to, source = (peers.rank + step) % peers.size, (peers.rank - step) % peers.size
        with written_in_a_row(outputs[source]) as row:
            peers.exchange(in_a_row(inputs[to]), to, row, source)


def reduction(op, tensor: torch.Tensor) -> Callable:
    """What combines two partial results."""
    if op not in REDUCTIONS:
        names = ", ".join(known.name for known in REDUCTIONS)
        raise ValueError(f"{op} is none of {names}; for a mean, sum and then divide")
    if tensor.is_complex() and op not in (ReduceOp.SUM, ReduceOp.PRODUCT):
        raise ValueError(f"complex numbers have no {op.name}: they have no order and no bits")
    return REDUCTIONS[op]


def fits(name: str, tensor: torch.Tensor, numel: int, dtype: torch.dtype):
    """A message of another size would stop in the middle, on another rank."""
    if tensor.numel() != numel or tensor.dtype != dtype:
        raise ValueError(
            f"{name} must hold {numel} numbers of {dtype}, not {tensor.numel()} of {tensor.dtype}"
        )

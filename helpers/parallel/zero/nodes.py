"""Collectives over nodes: one part of each runs inside the nodes, the other part between them.

K  nodes        L  ranks of a node        N = K L  ranks        S  numbers of a shard

Rank r = k L + l is rank l of node k. The links between nodes are slow. So each number crosses them
once, and not once for each rank of a node:

    all-gather        between: each rank gets the shards of the ranks l of all nodes, K S numbers
                      inside: the ranks of a node exchange these
    reduce-scatter    inside: rank l gets the node's sums for the ranks l of all nodes, K S numbers
                      between: these ranks exchange the sums

Sums need this order. One all-to-all among all N ranks has no sums of a node: each of its L ranks
would send its own numbers to the other nodes, L times as many.

Source: Wang et al. 2023, "ZeRO++", arXiv:2306.10209, sections 3.1 (qwZ) and 3.3 (qgZ).
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from helpers.comm.transport import GroupTransport, Messages, Work
from helpers.precision.blocks import Blocks

# As for Strategy, by bits. Measured on 2 nodes of 2 ranks with blocks of 256, 20 steps, AdamW with
# eps = 1e-4, two seeds or more. Gathers in int8: 0.10 to 0.12. Gathers in int4: 0.89 to 0.92,
# hardly better than no training, so they are refused. Sums in int8: 0.10; in int4: 0.52; in int8
# inside the nodes and int4 between them: 0.47. With int8 gathers too, no more: 0.52.
GATHERED = {8: 0.25}
REDUCED = {8: 0.2, 4: 0.65}


class NodesTransport(GroupTransport):
    """All-gathers and reduce-scatters over nodes, as they are or quantised.

    A quantised gather (qwZ) quantises a shard once, on its rank. Every rank decodes the same bytes,
    the shard's own rank too. So all ranks get the same numbers.

    A quantised reduction (qgZ) exchanges quantised numbers by all-to-all, and adds them here in
    float32 or wider. The sums of a node are quantised again. So a number is rounded twice, and not
    once for each rank as in a ring. The error of a sum is at most the bounds (`Blocks.bound`) of
    all ranks' numbers together, and of all nodes' sums together.

    A gather's part between the nodes, and a reduction's part inside, run at once. The other part
    begins in `wait`.

    Args:
        group: all N ranks.
        inside, between: the L ranks of this rank's node, and the K ranks with its place in a node.
        weights: the format of gathers; None sends the numbers as they are.
        gradients: the formats of reductions, inside and between; None sends them as they are.

    Raises:
        ValueError: the group does not consist of these nodes; weights in int4.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        inside: GroupTransport,
        between: GroupTransport,
        weights: Blocks | None = None,
        gradients: tuple[Blocks, Blocks] | None = None,
    ):
        super().__init__(group)
        self.inside, self.between = inside, between
        self.weights, self.gradients = weights, gradients
        if self.size != inside.size * between.size:
            raise ValueError(
                f"a parameter is on {self.size} of the {inside.size * between.size} ranks of all "
                "nodes: only what all of these ranks hold can be sharded over nodes"
            )
        if weights is not None and weights.bits not in GATHERED:
            raise ValueError(f"weights in int{weights.bits} hardly train: gather them in int8")
        said = []
        if weights is not None:
            said.append((f"parameters are gathered in int{weights.bits}", GATHERED[weights.bits]))
        if gradients is not None:
            bits = [form.bits for form in gradients]
            text = f"gradients are summed in int{bits[0]} inside nodes, int{bits[1]} between them"
            said.append((text, REDUCED[min(bits)]))
        self.lossy = ", and ".join(text for text, _ in said)
        self.bound = sum(bound for _, bound in said)

    def all_gather(self, every: torch.Tensor, own: torch.Tensor) -> Work:
        form, shard = self.weights, own.view(-1)
        sent = shard if form is None else form.encode(shard)
        column = sent.new_empty(self.between.size, sent.numel())  # this place's shards, (K, …)

        def inside():
            columns = column.new_empty(self.inside.size, *column.shape)  # (L, K, …)
            self.inside.all_gather(columns, column).wait()
            places = every.view(*columns.shape[1::-1], -1).transpose(0, 1)  # (L, K, S)
            if form is None:
                places.copy_(columns)
                return
            for received, numbers in zip(columns.flatten(0, 1), flat(places), strict=True):
                form.decode(received, numbers)

        return Messages([self.between.all_gather(column, sent)], inside)

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Work:
        first, second = self.gradients or (None, None)
        # What rank l of the node sums lies together then: the paper's reordering of slices.
        rows = every.view(self.between.size, self.inside.size, -1).transpose(0, 1)  # (L, K, S)
        begun, node_sums = scatter(self.inside, rows, first)

        def between():
            work, sums = scatter(self.between, node_sums().unsqueeze(1), second)  # (K, 1, S)
            work.wait()
            own.view(-1).copy_(sums()[0])

        return Messages([begun], between)

    def close(self):
        self.inside.close()
        self.between.close()


def scatter(
    transport: GroupTransport, rows: torch.Tensor, form: Blocks | None
) -> tuple[Work, Callable[[], torch.Tensor]]:
    """Start to sum rows, (N, M, S), over N ranks. Row r is for rank r.

    Args:
        form: how the numbers travel; None: as they are.

    Returns:
        The running messages; and a function that returns this rank's sums, (M, S), after them.
    """
    if form is None:
        own = rows.new_empty(rows.shape[1:])
        return transport.reduce_scatter(own, rows.contiguous()), lambda: own
    ranks, several, size = rows.shape
    sent = torch.empty(ranks, several, form.nbytes(size), dtype=torch.uint8, device=rows.device)
    for numbers, coded in zip(flat(rows), sent.flatten(0, 1), strict=True):
        form.encode(numbers, coded)
    received = torch.empty_like(sent)

    def sums() -> torch.Tensor:
        wide = torch.promote_types(rows.dtype, torch.float32)
        total = torch.zeros(several, size, dtype=wide, device=rows.device)
        part = torch.empty_like(total[0])
        for coded, to in zip(received.flatten(0, 1), [*total] * ranks, strict=True):
            to.add_(form.decode(coded, part))
        return total

    return transport.all_to_all(received, sent), sums


def flat(rows: torch.Tensor) -> list[torch.Tensor]:
    """Views of the rows of (L, K, S) in order, whatever the strides."""
    return [row for several in rows for row in several]

"""The messages around a layer. Between layers, activations are whole, or shards of the tokens.

A layer of tensor parallelism calls `enter` on its input, and `leave` on its partial sums:

                 enter, forward      enter, backward     leave, forward      leave, backward
    Whole        nothing             all-reduce          all-reduce          nothing
    Sharded      all-gather          reduce-scatter      reduce-scatter      all-gather

An all-reduce sends as much as a reduce-scatter and an all-gather together. So both send the same
number of bytes, but between the layers `Sharded` keeps only t = T/N tokens on a rank.

B  sequences        T  tokens of a sequence        t  tokens on a rank        D  width
"""

import torch

from helpers.comm import regions
from helpers.comm.regions import Coming, Ready, shard_size
from helpers.comm.transport import GroupTransport


class Whole:
    """Tensor parallelism: every rank has all activations (B, T, D) between the layers.

    Attributes:
        keeps_whole: whether `enter` leaves its result in memory as the input of the layer.
        partial: whether a replicated parameter's gradient is a partial sum over the axis.
    """

    keeps_whole = True
    partial = False

    def __init__(self, transport: GroupTransport):
        self.transport = transport

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """From between the layers into one, with autograd."""
        return regions.copy_to(x, self.transport)

    def leave(self, partial: torch.Tensor) -> torch.Tensor:
        """From a layer's partial sums (B, T, D) out of it, with autograd."""
        return regions.reduce_from(partial, self.transport)

    # The same without autograd, for layers that write their own backward.

    def inward(self, x: torch.Tensor) -> Ready | Coming:
        """What enters a layer: begun here, waited for later."""
        return Ready(x)

    def outward(self, partial: torch.Tensor) -> Ready | Coming:
        """The sum of contiguous partial sums, which may be overwritten."""
        return regions.summed(partial, self.transport)

    def own(self, tokens: int) -> slice:
        """Which tokens this rank has between the layers."""
        return slice(0, tokens)


class Sharded(Whole):
    """Sequence parallelism: every rank has t = T/N tokens (B, t, D) between the layers.

    Args:
        again: gather the input of a layer a second time in its backward, instead of keeping it.
            1.25 times the bytes, and none of the whole inputs in memory.
    """

    partial = True

    def __init__(self, transport: GroupTransport, again: bool = True):
        super().__init__(transport)
        self.keeps_whole = not again

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return regions.gather_from(x, self.transport)

    def leave(self, partial: torch.Tensor) -> torch.Tensor:
        return regions.reduce_scatter_to(partial, self.transport)

    def inward(self, x: torch.Tensor) -> Ready | Coming:
        return regions.gathered(x, self.transport)

    def outward(self, partial: torch.Tensor) -> Ready | Coming:
        return regions.sum_scattered(partial, self.transport)

    def own(self, tokens: int) -> slice:
        size = shard_size(tokens, self.transport.size)
        return slice(self.transport.rank * size, (self.transport.rank + 1) * size)

"""The messages around a layer. Between layers, activations are whole, or shards of the tokens.

A layer of tensor parallelism calls `enter` on its input, and `leave` on its partial sums:

                 enter, forward      enter, backward     leave, forward      leave, backward
    Whole        nothing             all-reduce          all-reduce          nothing
    Sharded      all-gather          reduce-scatter      reduce-scatter      all-gather

There is no all-to-all: that is Ulysses (Jacobs et al. 2023), which cuts by heads.

An all-reduce sends as much as a reduce-scatter and an all-gather together. So both send the same
number of bytes, but between the layers `Sharded` keeps only t = T/N tokens on a rank.

B  sequences        T  tokens of a sequence        t  tokens on a rank        D  width
"""

from collections.abc import Callable

import torch

from helpers.comm import regions
from helpers.comm.regions import Coming, Ready, shard_size
from helpers.comm.transport import GroupTransport
from helpers.parallel.tensor.chunks import gather_and_multiply, multiply_and_scatter

Products = Callable[[torch.Tensor], list[torch.Tensor]]
Product = Callable[[list[torch.Tensor]], torch.Tensor]


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

    def multiply_in(self, x: torch.Tensor, products: Products, keep: bool):
        """Enter a layer and multiply: the whole input (None unless kept), and its products."""
        whole = self.inward(x).wait()
        return (whole if keep else None), products(whole)

    def multiply_out(self, inputs: list[torch.Tensor], product: Product) -> Ready | Coming:
        """Multiply and leave a layer: begun here, waited for later."""
        return self.outward(product(inputs))

    def own(self, tokens: int) -> slice:
        """Which tokens this rank has between the layers."""
        return slice(0, tokens)


class Sharded(Whole):
    """Sequence parallelism: every rank has t = T/N tokens (B, t, D) between the layers.

    Args:
        again: gather the input of a layer a second time in its backward, instead of keeping it.
            1.25 times the bytes, and none of the whole inputs in memory.
        chunks: cut each message and its matrix product into so many chunks, side by side.
    """

    partial = True

    def __init__(self, transport: GroupTransport, again: bool = True, chunks: int = 1):
        super().__init__(transport)
        if chunks < 1:
            raise ValueError(f"chunks must be at least 1, not {chunks}")
        self.keeps_whole, self.chunks = not again, chunks

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return regions.gather_from(x, self.transport)

    def leave(self, partial: torch.Tensor) -> torch.Tensor:
        return regions.reduce_scatter_to(partial, self.transport)

    def inward(self, x: torch.Tensor) -> Ready | Coming:
        return regions.gathered(x, self.transport)

    def outward(self, partial: torch.Tensor) -> Ready | Coming:
        return regions.sum_scattered(partial, self.transport)

    def multiply_in(self, x: torch.Tensor, products: Products, keep: bool):
        if self.chunks == 1 or self.transport.size == 1:
            return super().multiply_in(x, products, keep)
        return gather_and_multiply(x, self.transport, self.chunks, products, keep)

    def multiply_out(self, inputs: list[torch.Tensor], product: Product) -> Ready | Coming:
        if self.chunks == 1 or self.transport.size == 1:
            return super().multiply_out(inputs, product)
        return Ready(multiply_and_scatter(inputs, self.transport, self.chunks, product))

    def own(self, tokens: int) -> slice:
        size = shard_size(tokens, self.transport.size)
        return slice(self.transport.rank * size, (self.transport.rank + 1) * size)

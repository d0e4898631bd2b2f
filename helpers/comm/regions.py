"""Pairs of collectives for autograd: what a forward sends, its backward undoes.

Tensor parallelism moves activations between two regions. In the one, every rank has the **whole**
tensor, or its **shard** of the tokens. In the other, every rank computes its part of a layer from
the whole tensor, and its result is a **partial sum**.

    function             forward               backward              also known as
    copy_to              nothing               all-reduce            f
    reduce_from          all-reduce            nothing               g
    gather_from          all-gather            reduce-scatter        g of sequence parallelism
    reduce_scatter_to    reduce-scatter        all-gather            g-bar

Sources: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, for f and g. Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198, for g and g-bar.

B  sequences        T  tokens of a sequence        t  tokens of a shard, T/N        D  width
"""

import torch
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function_unary

from helpers.comm.transport import GroupTransport

TOKENS = 1  # the dim of (B, T, D) that sequence parallelism cuts


def copy_to(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    """f: every rank uses the whole x; its gradient is the sum of all ranks' gradients."""
    return pair(copy_to, x, transport, same, sum_of_copy)


def reduce_from(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    """g: the sum of all ranks' x; each rank's gradient is the gradient of the sum."""
    return pair(reduce_from, x, transport, sum_of_copy, same)


def gather_from(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    """Gather the shards (B, t, D) into the whole (B, T, D); gradients are summed and cut."""
    return pair(gather_from, x, transport, gather, scatter_sum)


def reduce_scatter_to(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    """g-bar: sum all ranks' (B, T, D), and keep this rank's shard (B, t, D) of the sum.

    Raises:
        ValueError: the tokens do not divide over the ranks.
    """
    return pair(reduce_scatter_to, x, transport, scatter_sum, gather)


def pair(call, x: torch.Tensor, transport: GroupTransport, forward, backward) -> torch.Tensor:
    """Apply `forward` to x, and `backward` to the gradient of its result."""
    if has_torch_function_unary(x):  # a subclass may want to see the call
        return handle_torch_function(call, (x,), x, transport)
    return _Pair.apply(x, transport, forward, backward)


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, transport, forward, backward):
        ctx.undo = lambda gradient: backward(gradient, transport)
        return forward(x, transport)

    @staticmethod
    @once_differentiable  # a gradient of this gradient would leave out the other ranks
    def backward(ctx, gradient):
        return ctx.undo(gradient), None, None, None


def same(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    return x.view_as(x)


def sum_of_copy(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    return sum_over(x.clone(memory_format=torch.contiguous_format), transport)


def gather(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    return gathered(x, transport).wait()


def scatter_sum(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    return sum_scattered(x, transport).wait()


class Ready:
    """A result that needs no message, or whose message is over."""

    def __init__(self, result: torch.Tensor):
        self.result = result

    def wait(self) -> torch.Tensor:
        return self.result


class Coming:
    """A result that a collective is still filling; `finish` makes it of the buffer."""

    def __init__(self, work, buffer: torch.Tensor, finish=None):
        self.work, self.buffer, self.finish = work, buffer, finish

    def wait(self) -> torch.Tensor:
        self.work.wait()
        return self.finish(self.buffer) if self.finish else self.buffer


def summed(x: torch.Tensor, transport: GroupTransport) -> Ready | Coming:
    """Start to sum a contiguous x over the ranks, in place. An empty x needs no message."""
    if transport.size == 1 or not x.numel():
        return Ready(x)
    return Coming(transport.all_reduce(x), x)


def sum_over(x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    return summed(x, transport).wait()


def gathered(x: torch.Tensor, transport: GroupTransport) -> Ready | Coming:
    """Start to gather shards (B, t, …) into (B, T, …), in the ranks' order."""
    if transport.size == 1:
        return Ready(x)
    sequences, tokens, *rest = x.shape
    if not x.numel():
        return Ready(x.new_empty(sequences, transport.size * tokens, *rest))
    every = x.new_empty(transport.size, *x.shape)
    return Coming(transport.all_gather(every, x.detach().contiguous()), every, side_by_side)


def side_by_side(every: torch.Tensor) -> torch.Tensor:
    """Shards (N, B, t, …) as (B, N t, …); a copy, unless B is 1."""
    return every.movedim(0, TOKENS).flatten(TOKENS, TOKENS + 1)


def sum_scattered(x: torch.Tensor, transport: GroupTransport) -> Ready | Coming:
    """Start to sum (B, T, …) over the ranks, and to keep this rank's (B, t, …)."""
    if transport.size == 1:
        return Ready(x)
    size = shard_size(x.shape[TOKENS], transport.size)
    every = x.detach().unflatten(TOKENS, (transport.size, size)).movedim(TOKENS, 0).contiguous()
    own = torch.empty_like(every[0])
    if not own.numel():
        return Ready(own)
    return Coming(transport.reduce_scatter(own, every), own)


def shard_size(tokens: int, ranks: int) -> int:
    """t: tokens of a shard.

    Raises:
        ValueError: the tokens do not divide over the ranks.
    """
    if tokens % ranks:
        raise ValueError(
            f"{tokens} tokens do not divide over {ranks} ranks: sequence parallelism needs shards "
            f"of one size; choose a length that is a multiple of {ranks}, or use tensor parallelism"
        )
    return tokens // ranks

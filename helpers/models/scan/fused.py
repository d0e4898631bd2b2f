"""The selective scan as one loop in time that keeps almost nothing for the backward.

B  sequences      L  length      D  channels      N  state of a channel      Q  tokens of a piece

The states of all tokens are N times as large as the input. So they never exist as a whole. Pieces
of Q tokens go through buffers that fit into a core's cache. The forward keeps only the state before
each piece; the backward goes from the last piece to the first, and computes the states of a piece
once more. That is the idea of Mamba's GPU kernel: recomputation is cheaper than memory.

In the buffers time is the first dim, (Q, B, N, D): the numbers of a token lie side by side. D is
the last dim, because B_t and C_t are the same for all channels.

Source: Gu and Dao 2023, arXiv:2312.00752, section 3.3.2 and appendix D. The formulas are in
`selective`, and the gradient of the recurrence in `recurrence`.
"""

from functools import reduce

import torch
from torch.autograd.function import once_differentiable

BYTES = 2**19  # of one buffer; a backward has four of them
LEAST = 16  # tokens of a piece, however large a state is: else all states would be kept


def piece_length(length: int, state_bytes: int) -> int:
    """Q: as many tokens as a buffer has room for, but at least LEAST."""
    return max(1, min(length, max(LEAST, BYTES // max(1, state_bytes))))


def scan(x, delta, A, B, C, h0=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute y (B, L, D), without the skip connection, and the last state (B, D, N).

    The arguments are those of `selective.selective_scan`. It computes in the widest dtype of all
    arguments, at least float32; y gets the dtype of x.
    """
    dtype = widest(x, delta, A, B, C, *(() if h0 is None else (h0,)))
    if h0 is None:
        h0 = x.new_zeros(x.shape[0], *A.shape, dtype=dtype)
    y, last = _Selective.apply(*(tensor.to(dtype) for tensor in (x, delta, A, B, C, h0)))
    return y.to(x.dtype), last


def widest(*tensors: torch.Tensor) -> torch.dtype:
    """The widest dtype of all tensors, at least float32."""
    return reduce(torch.promote_types, (t.dtype for t in tensors), torch.float32)


class _Selective(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, delta, A, B, C, h0):
        y, states = Pieces(x, delta, A, B, C).forward(h0.mT)
        ctx.save_for_backward(x, delta, A, B, C, states[:-1])
        return y, states[-1].mT.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dlast):
        *inputs, states = ctx.saved_tensors
        return Pieces(*inputs).backward(states, dy, dlast.mT)


class Pieces:
    """The inputs, and the buffers of a piece."""

    def __init__(self, x, delta, A, B, C):
        self.inputs = x, delta, B, C
        self.A = A.mT.contiguous()  # (N, D)
        self.shape = (x.shape[0], *self.A.shape)  # of a state: (B, N, D)
        self.length = x.shape[1]
        numbers = self.shape[0] * self.A.numel()
        self.size = piece_length(self.length, numbers * x.element_size())  # Q
        self.a, self.h = self.buffer(), self.buffer()

    def buffer(self) -> torch.Tensor:
        return self.A.new_empty(self.size, *self.shape)

    def spans(self) -> list[slice]:
        """The tokens of each piece."""
        starts = range(0, self.length, self.size)
        return [slice(start, start + self.size) for start in starts]

    def states(self, span: slice, before: torch.Tensor):
        """Compute a piece's states into the buffers.

        Args:
            span: the tokens of the piece.
            before: the state before the piece (B, N, D).

        Returns:
            The piece of x, delta, B and C, time first; Δ x; decays and states (q, B, N, D).
        """
        x, delta, B, C = (time_first(tensor[:, span]) for tensor in self.inputs)
        scaled = delta * x  # (q, B, D)
        a, h = self.a[: len(x)], self.h[: len(x)]
        torch.mul(delta.unsqueeze(2), self.A, out=a).exp_()
        torch.mul(B.unsqueeze(3), scaled.unsqueeze(2), out=h)
        for decay, state in zip(a.unbind(), h.unbind(), strict=True):
            before = state.addcmul_(decay, before)
        return x, delta, B, C, scaled, a, h

    def forward(self, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute y (B, L, D), and the state before each piece and after the last."""
        x, *_ = self.inputs
        y, spans = torch.empty_like(x), self.spans()
        states = x.new_empty(len(spans) + 1, *self.shape)
        states[0] = before
        for piece, span in enumerate(spans):
            *_, C, _, _, h = self.states(span, states[piece])
            y[:, span] = time_second((C.unsqueeze(2) @ h).squeeze(2))
            states[piece + 1] = h[-1]
        return y, states

    def backward(self, before: torch.Tensor, dy: torch.Tensor, later: torch.Tensor):
        """Compute the gradients of x, delta, A, B, C and h0, in their own shapes.

        Args:
            before: the state before each piece (K, B, N, D).
            dy: the gradient of y (B, L, D).
            later: the gradient of the last state (B, N, D).
        """
        dx, ddelta, dB, dC = (torch.empty_like(tensor) for tensor in self.inputs)
        dA, spans = torch.zeros_like(self.A), self.spans()
        total, product = self.buffer(), self.buffer()
        for piece in reversed(range(len(spans))):
            span = spans[piece]
            x, delta, B, C, scaled, a, h = self.states(span, before[piece])
            out = time_first(dy[:, span])
            dC[:, span] = time_second((h @ out.unsqueeze(3)).squeeze(3))
            # The adjoint λ of the piece. `later` is the share of the next token.
            adjoint = torch.mul(C.unsqueeze(3), out.unsqueeze(2), out=total[: len(x)])
            each, decays = adjoint.unbind(), a.unbind()
            each[-1].add_(later)
            for t in range(len(x) - 1, 0, -1):
                each[t - 1].addcmul_(decays[t], each[t])
            later = decays[0] * each[0]
            dB[:, span] = time_second((adjoint @ scaled.unsqueeze(3)).squeeze(3))
            dscaled = (B.unsqueeze(2) @ adjoint).squeeze(2)
            # The gradient of Δ A is λ_t h_(t-1) a_t.
            a[0].mul_(before[piece])
            a[1:].mul_(h[:-1])
            a.mul_(adjoint)
            by_delta = torch.mul(a, self.A, out=product[: len(x)]).sum(2)
            ddelta[:, span] = time_second(by_delta.addcmul_(dscaled, x))
            dx[:, span] = time_second(dscaled.mul_(delta))
            dA += torch.mul(a, delta.unsqueeze(2), out=product[: len(x)]).sum((0, 1))
        return dx, ddelta, dA.mT, dB, dC, later.mT


def time_first(x: torch.Tensor) -> torch.Tensor:
    """Copy (B, q, D) into (q, B, D)."""
    return x.transpose(0, 1).contiguous()


def time_second(x: torch.Tensor) -> torch.Tensor:
    """View (q, B, D) as (B, q, D)."""
    return x.transpose(0, 1)

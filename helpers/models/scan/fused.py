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

import torch
from torch.autograd.function import once_differentiable

BYTES = 2**19  # of one buffer; a backward has four of them


def scan(x, delta, A, B, C, h0=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute y (B, L, D), without the skip connection, and the last state (B, D, N).

    The arguments are those of `selective.selective_scan`. It computes in the widest dtype of all
    arguments, at least float32; y gets the dtype of x.
    """
    dtype = torch.float32
    for tensor in (x, delta, A, B, C, h0):
        dtype = dtype if tensor is None else torch.promote_types(dtype, tensor.dtype)
    if h0 is None:
        h0 = x.new_zeros(x.shape[0], *A.shape, dtype=dtype)
    y, last = _Selective.apply(*(tensor.to(dtype) for tensor in (x, delta, A, B, C, h0)))
    return y.to(x.dtype), last


class _Selective(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, delta, A, B, C, h0):
        pieces = Pieces(x, delta, A, B, C)
        y, states = pieces.forward(h0.mT)
        ctx.save_for_backward(x, delta, A, B, C, states[:-1])
        return y.transpose(0, 1).contiguous(), states[-1].mT.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dlast):
        *inputs, states = ctx.saved_tensors
        return Pieces(*inputs).backward(states, dy, dlast.mT)


class Pieces:
    """The inputs with time first, and the buffers of a piece."""

    def __init__(self, x, delta, A, B, C):
        self.x, self.delta, self.B, self.C = (
            tensor.transpose(0, 1).contiguous() for tensor in (x, delta, B, C)
        )
        self.scaled = self.x * self.delta  # (L, B, D)
        self.A = A.mT.contiguous()  # (N, D)
        self.shape = (x.shape[0], *self.A.shape)  # of a state: (B, N, D)
        self.length = x.shape[1]
        numbers = max(1, self.shape[0] * self.A.numel())
        self.size = max(1, min(self.length, BYTES // (numbers * x.element_size())))  # Q
        self.a, self.h = self.buffer(), self.buffer()

    def buffer(self) -> torch.Tensor:
        return self.x.new_empty(self.size, *self.shape)

    def bounds(self) -> list[tuple[int, int]]:
        """First token, and last token + 1, of each piece."""
        starts = range(0, self.length, self.size)
        return [(start, min(start + self.size, self.length)) for start in starts]

    def states(self, start: int, end: int, before: torch.Tensor):
        """Compute the decays and states of a piece into the buffers: (q, B, N, D) each."""
        a, h = self.a[: end - start], self.h[: end - start]
        torch.mul(self.delta[start:end].unsqueeze(2), self.A, out=a).exp_()
        torch.mul(self.B[start:end].unsqueeze(3), self.scaled[start:end].unsqueeze(2), out=h)
        for decay, state in zip(a.unbind(), h.unbind(), strict=True):
            before = state.addcmul_(decay, before)
        return a, h

    def forward(self, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute y (L, B, D), and the state before each piece and after the last."""
        y = torch.empty_like(self.x)
        bounds = self.bounds()
        states = self.x.new_empty(len(bounds) + 1, *self.shape)
        states[0] = before
        for piece, (start, end) in enumerate(bounds):
            _, h = self.states(start, end, states[piece])
            torch.matmul(
                self.C[start:end].unsqueeze(2), h, out=y[start:end].unsqueeze(2)
            )  # (q, B, 1, N) (q, B, N, D)
            states[piece + 1] = h[-1]
        return y, states

    def backward(self, before: torch.Tensor, dy: torch.Tensor, later: torch.Tensor):
        """Compute the gradients of x, delta, A, B, C and h0, in their own shapes.

        Args:
            before: the state before each piece (K, B, N, D).
            dy: the gradient of y (B, L, D).
            later: the gradient of the last state (B, N, D).
        """
        dy = dy.transpose(0, 1).contiguous()
        dscaled, ddelta = torch.empty_like(self.x), torch.empty_like(self.x)
        dA, dB, dC = (torch.zeros_like(tensor) for tensor in (self.A, self.B, self.C))
        total, product = self.buffer(), self.buffer()
        for piece, (start, end) in reversed(list(enumerate(self.bounds()))):
            span, q = slice(start, end), end - start
            a, h = self.states(start, end, before[piece])
            torch.matmul(h, dy[span].unsqueeze(3), out=dC[span].unsqueeze(3))
            # the adjoint λ of the piece; `later` is what the next token hands back
            adjoint = torch.mul(self.C[span].unsqueeze(3), dy[span].unsqueeze(2), out=total[:q])
            each, decays = adjoint.unbind(), a.unbind()
            each[-1].add_(later)
            for t in range(q - 1, 0, -1):
                each[t - 1].addcmul_(decays[t], each[t])
            later = decays[0] * each[0]
            torch.matmul(adjoint, self.scaled[span].unsqueeze(3), out=dB[span].unsqueeze(3))
            torch.matmul(self.B[span].unsqueeze(2), adjoint, out=dscaled[span].unsqueeze(2))
            # The gradient of Δ A is λ_t h_(t-1) a_t.
            a[0].mul_(before[piece])
            a[1:].mul_(h[:-1])
            a.mul_(adjoint)
            torch.sum(torch.mul(a, self.A, out=product[:q]), 2, out=ddelta[span])
            dA += torch.mul(a, self.delta[span].unsqueeze(2), out=product[:q]).sum((0, 1))
        ddelta.addcmul_(dscaled, self.x)
        dx = dscaled.mul_(self.delta)
        by_sequence = (g.transpose(0, 1) for g in (dB, dC))
        return dx.transpose(0, 1), ddelta.transpose(0, 1), dA.mT, *by_sequence, later.mT

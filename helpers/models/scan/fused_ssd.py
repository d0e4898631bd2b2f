"""Mamba-2's scan in chunks as one autograd function, with a backward written by hand.

B  sequences     L  length     H  heads     P  width of a head     N  state     G  groups of B and C
q  tokens of a chunk           R  heads of a group, H/G

One chunk at a time goes through a core's cache. The forward keeps its inputs and the state before
each chunk; the backward computes the rest of a chunk again. The heads of a group share B and C, so
that their products with B and C are one larger matrix product.

A chunk has x' = Δ x; l, the sum of Δ A up to each token; and S, the state before it. With
M = (C Bᵀ) exp(l_t - l_s) for s ≤ t, as in `ssd`:

    y = M x' + exp(l) C Sᵀ        S ← exp(l_q) S + (exp(l_q - l) x')ᵀ B

Source: Dao and Gu 2024, arXiv:2405.21060, section 6, for the forward; the backward is its
derivative, with l's gradient as row sums minus column sums of M's.
"""

import torch
from torch.autograd.function import once_differentiable


def scan(x, delta, A, B, C, h0, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute y (B, L, H, P), without the skip connection, and the last state (B, H, P, N).

    The arguments are those of `ssd.ssd`. It computes in the widest dtype of all arguments, at least
    float32; y gets the dtype of x.
    """
    dtype = torch.float32
    for tensor in (x, delta, A, B, C, h0):
        dtype = torch.promote_types(dtype, tensor.dtype)
    y, last = _Dual.apply(chunk, *(tensor.to(dtype) for tensor in (x, delta, A, B, C, h0)))
    return y.to(x.dtype), last


class _Dual(torch.autograd.Function):
    @staticmethod
    def forward(ctx, size, x, delta, A, B, C, h0):
        ctx.size, y = size, torch.empty_like(x, memory_format=torch.contiguous_format)
        spans = spans_of(x.shape[1], size)
        states = x.new_empty(len(spans) + 1, *h0.shape)
        states[0] = h0
        for number, span in enumerate(spans):
            chunk = Chunk(x, delta, A, B, C, span)
            y[:, span], states[number + 1] = chunk.forward(states[number])
        ctx.save_for_backward(x, delta, A, B, C, states[:-1])
        return y, states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dlast):
        x, delta, A, B, C, states = ctx.saved_tensors
        dx, ddelta, dB, dC = (torch.empty_like(t) for t in (x, delta, B, C))
        dA, spans = torch.zeros_like(A), spans_of(x.shape[1], ctx.size)
        for number in reversed(range(len(spans))):
            span = spans[number]
            chunk = Chunk(x, delta, A, B, C, span)
            found = chunk.backward(states[number], dy[:, span], dlast)
            dx[:, span], ddelta[:, span], of_A, dB[:, span], dC[:, span], dlast = found
            dA += of_A
        return None, dx, ddelta, dA, dB, dC, dlast


def spans_of(length: int, size: int) -> list[slice]:
    """The tokens of each chunk; the last may have fewer."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


class Chunk:
    """The tokens of one chunk, and what forward and backward need of them."""

    def __init__(self, x, delta, A, B, C, span: slice):
        self.x, self.delta, self.A = x[:, span], delta[:, span], A  # (B, q, H, P), (B, q, H)
        self.B, self.C = (t[:, span].transpose(1, 2).contiguous() for t in (B, C))  # (B, G, q, N)
        self.groups, self.tokens = B.shape[2], self.x.shape[1]
        self.scaled = self.x * self.delta.unsqueeze(-1)
        log = (self.delta * A).cumsum(1)  # (B, q, H)
        self.begin = torch.exp(log).unsqueeze(-1)  # from the chunk's start to t, (B, q, H, 1)
        self.end = torch.exp(log[:, -1:] - log).unsqueeze(-1)  # from t to the chunk's end
        self.through = torch.exp(log[:, -1])[..., None, None]  # (B, H, 1, 1)
        log = log.transpose(1, 2)  # (B, H, q)
        later = torch.ones(2 * (self.tokens,), dtype=torch.bool, device=x.device).triu_(1)
        # masked before exp: above the diagonal exp could overflow
        between = (log.unsqueeze(-1) - log.unsqueeze(-2)).masked_fill_(later, float("-inf"))
        self.decay = between.exp_().unflatten(1, (self.groups, -1))  # (B, G, R, q, q)
        self.scores = (self.C @ self.B.mT).unsqueeze(2)  # (B, G, 1, q, q)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute y (B, q, H, P), and the state after the chunk, (B, H, P, N)."""
        masked = (self.scores * self.decay).flatten(1, 2)  # (B, H, q, q)
        y = self.read(self.C, state).mul_(self.begin)
        y += (masked @ heads_first(self.scaled)).transpose(1, 2)
        added = self.by_group(self.scaled * self.end).mT @ self.B  # (B, G, R P, N)
        return y, (state * self.through).add_(added.view_as(state))

    def backward(self, state: torch.Tensor, dy: torch.Tensor, dlast: torch.Tensor):
        """Compute the gradients of x, delta, A, B, C and the state before, in their own shapes.

        Args:
            state: before the chunk, (B, H, P, N).
            dy: of y, (B, q, H, P).
            dlast: of the state after the chunk.
        """
        # to and from the state
        from_state, to_end = dy * self.begin, self.scaled * self.end  # (B, q, H, P)
        read = self.read(self.C, state)  # C Sᵀ
        wrote = self.read(self.B, dlast).mul_(self.end)  # each token's share of S, back to x'
        whole = dlast.unflatten(1, (self.groups, -1)).flatten(2, 3)  # (B, G, R P, N)
        before = state.unflatten(1, (self.groups, -1)).flatten(2, 3)
        dC = self.by_group(from_state) @ before  # (B, G, q, N)
        dB = self.by_group(to_end) @ whole
        dstate = (self.by_group(from_state).mT @ self.C).view_as(state)
        dlog = (from_state * read).sum(-1)  # (B, q, H)
        kept = (self.scaled * wrote).sum(-1)
        dlog -= kept
        dlog[:, -1] += kept.sum(1) + (state * dlast).sum((-2, -1)) * self.through[..., 0, 0]
        dstate += dlast * self.through
        # within the chunk
        out = heads_first(dy)  # (B, H, q, P)
        masked = (self.scores * self.decay).flatten(1, 2)  # (B, H, q, q)
        dscaled = wrote.add_((masked.mT @ out).transpose(1, 2))
        dmasked = (out @ heads_first(self.scaled).mT).unflatten(1, (self.groups, -1))
        dmasked *= self.decay  # (B, G, R, q, q)
        dscores = dmasked.sum(2)
        dC += dscores @ self.B
        dB += dscores.mT @ self.C
        dmasked *= self.scores
        dlog += (dmasked.sum(-1) - dmasked.sum(-2)).flatten(1, 2).transpose(1, 2)
        # l_t is a sum over all tokens up to t
        dsteps = dlog.flip(1).cumsum(1).flip(1)  # of Δ A, (B, q, H)
        ddelta = dsteps * self.A + (dscaled * self.x).sum(-1)
        of_A = (dsteps * self.delta).sum((0, 1))
        dx = dscaled.mul_(self.delta.unsqueeze(-1))
        return dx, ddelta, of_A, dB.transpose(1, 2), dC.transpose(1, 2), dstate

    def by_group(self, x: torch.Tensor) -> torch.Tensor:
        """Put a group's heads side by side: (B, q, H, P) to (B, G, q, R P)."""
        return x.unflatten(2, (self.groups, -1)).flatten(3, 4).transpose(1, 2)

    def read(self, rows: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Multiply rows (B, G, q, N) by each head's state (B, H, P, N)ᵀ: (B, q, H, P)."""
        whole = state.unflatten(1, (self.groups, -1)).flatten(2, 3)  # (B, G, R P, N)
        found = (rows @ whole.mT).transpose(1, 2)  # (B, q, G, R P)
        return found.unflatten(3, (-1, state.shape[2])).flatten(2, 3)


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """Copy (B, q, H, P) into (B, H, q, P)."""
    return x.transpose(1, 2).contiguous()

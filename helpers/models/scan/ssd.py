"""Mamba-2's scan as matrix products: the state space duality, in chunks.

B  sequences     L  length     H  heads     P  width of a head     N  state     G  groups of B and C
Q  tokens of a chunk           q  tokens of the last one, Q or fewer        R  heads of a group, H/G

A head has one decay for all its numbers, and a state of P x N numbers:

    h_t = exp(Δ_t A) h_(t-1) + Δ_t x_t B_tᵀ        y_t = h_t C_t + D x_t

Written out, y_t is a sum over the tokens s ≤ t, as in attention without softmax:

    y_t = Σ_s (C_t · B_s) exp(Δ_(s+1) A + … + Δ_t A) Δ_s x_s

The two sides of this **duality** cost O(L N P) in L steps, and O(L² (N + P)) in matrix products. In
chunks, matrix products do the work within a chunk, and the state carries the rest to the next one.

A chunk has x' = Δ x; l, the sum of Δ A up to each token; and S, the state before it. With
M = (C Bᵀ) exp(l_t - l_s) for s ≤ t:

    y = M x' + exp(l) C Sᵀ        S ← exp(l_q) S + (exp(l_q - l) x')ᵀ B

One chunk at a time goes through a core's cache. The forward keeps its inputs and the state before
each chunk; the backward computes the rest of a chunk again. The heads of a group share B and C, so
that their products with B and C are one larger matrix product. The backward is the forward's
derivative, with l's gradient as row sums minus column sums of M's.

Source: Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
Structured State Space Duality", arXiv:2405.21060, section 6.
"""

import torch
from torch.autograd.function import once_differentiable

from helpers.models.scan.fused import widest
from helpers.models.scan.selective import fits


def ssd(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    h0: torch.Tensor | None = None,
    chunk: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute y (B, L, H, P) and the last state (B, H, P, N). All arguments are differentiable.

    A Δ of 0 leaves the state as it is: so padding gets Δ = 0. The computation is in the widest
    dtype of all arguments, at least float32; y gets the dtype of x.

    Args:
        x: the inputs (B, L, H, P).
        delta: Δ, the steps (B, L, H), positive.
        A: (H,), negative.
        B, C: (B, L, G, N). Heads r G … of a group are neighbours.
        D: (H,); None: no skip connection.
        h0: the state before the first token (B, H, P, N); None: zeros.
        chunk: Q. It need not divide L.

    Raises:
        ValueError: shapes that do not fit, or a chunk without tokens.
    """
    check(x, delta, A, B, C, D, h0, chunk)
    sequences, length, heads, width = x.shape
    if h0 is None:
        h0 = x.new_zeros(sequences, heads, width, B.shape[-1])
    dtype = widest(x, delta, A, B, C, h0)
    given = (tensor.to(dtype) for tensor in (x, delta, A, B, C, h0))
    y, last = _Dual.apply(min(chunk, max(1, length)), *given)
    y = y.to(x.dtype)
    return (y if D is None else y + D.unsqueeze(-1) * x), last


def check(x, delta, A, B, C, D, h0, chunk):
    """Raise ValueError for the first shape that does not fit x and B."""
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}: a chunk has at least one token")
    if x.dim() != 4 or B.dim() != 4:
        raise ValueError(
            f"x is {tuple(x.shape)}, B {tuple(B.shape)}: need (B, L, H, P) and (B, L, G, N)"
        )
    sequences, length, heads, width = x.shape
    groups, state = B.shape[2:]
    if not groups or heads % groups:
        raise ValueError(f"{heads} heads do not divide into {groups} groups of B and C")
    wanted = {
        "delta": (delta, (sequences, length, heads)),
        "A": (A, (heads,)),
        "B": (B, (sequences, length, groups, state)),
        "C": (C, (sequences, length, groups, state)),
        "D": (D, (heads,)),
        "h0": (h0, (sequences, heads, width, state)),
    }
    fits(wanted, f"x {tuple(x.shape)}")


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


def ssd_step(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    h: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advance Mamba-2's state by one token: a head has one decay (Dao and Gu 2024, section 7).

    Args:
        x: (B, H, P).
        delta: (B, H).
        A: (H,), negative.
        B, C: (B, G, N).
        D: (H,).
        h: (B, H, P, N), the state before.

    Returns:
        y (B, H, P), and the state after, (B, H, P, N).
    """
    shared = x.shape[1] // B.shape[1]
    B, C = (t.repeat_interleave(shared, dim=1) for t in (B, C))  # (B, H, N)
    decay = torch.exp(delta * A)[..., None, None]  # (B, H, 1, 1)
    h = torch.addcmul((delta[..., None] * x)[..., None] * B[:, :, None], decay, h)
    return torch.addcmul((h @ C[..., None])[..., 0], D[:, None], x), h

"""Mamba-2's scan as matrix products: the state space duality, in chunks.

B  sequences     L  length     H  heads     P  width of a head     N  state     G  groups of B and C
Q  tokens of a chunk           K  chunks, ⌈L/Q⌉                    R  heads of a group, H/G

A head has one decay for all its numbers, and a state of P x N numbers:

    h_t = exp(Δ_t A) h_(t-1) + Δ_t x_t B_tᵀ        y_t = h_t C_t + D x_t

Written out, y_t is a sum over the tokens s ≤ t, as in attention without softmax:

    y_t = Σ_s (C_t · B_s) exp(Δ_(s+1) A + … + Δ_t A) Δ_s x_s

The two sides of this **duality** cost O(L N P) in L steps, and O(L² (N + P)) in matrix products. In
chunks, matrix products do the work within a chunk, and the state carries the rest to the next one.

Source: Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
Structured State Space Duality", arXiv:2405.21060, section 6.
"""

import torch
from torch.nn import functional

from helpers.models.scan import fused_ssd, recurrence
from helpers.models.scan.selective import fits

FORMS = ("fused", "plain")  # "plain" is `in_chunks`, with PyTorch's backward


def ssd(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    h0: torch.Tensor | None = None,
    chunk: int = 64,
    form: str = "fused",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute y (B, L, H, P) and the last state (B, H, P, N). All arguments are differentiable.

    A Δ of 0 leaves the state as it is: so padding gets Δ = 0.

    Args:
        x: the inputs (B, L, H, P).
        delta: Δ, the steps (B, L, H), positive.
        A: (H,), negative.
        B, C: (B, L, G, N). Heads r G … of a group are neighbours.
        D: (H,); None: no skip connection.
        h0: the state before the first token (B, H, P, N); None: zeros.
        chunk: Q. It need not divide L.
        form: one of FORMS. Both give the same numbers, up to rounding.

    Raises:
        ValueError: an unknown form, shapes that do not fit, or a chunk without tokens.
    """
    check(x, delta, A, B, C, D, h0, chunk)
    if form not in FORMS:
        raise ValueError(f"form is {form!r}: choose one of {', '.join(FORMS)}")
    sequences, length, heads, width = x.shape
    if h0 is None:
        h0 = x.new_zeros(sequences, heads, width, B.shape[-1])
    compute = fused_ssd.scan if form == "fused" else in_chunks
    y, last = compute(x, delta, A, B, C, h0, min(chunk, max(1, length)))
    return (y if D is None else y + D.unsqueeze(-1) * x), last


def in_chunks(x, delta, A, B, C, h0, chunk):
    """Scan without the skip connection, from the state h0."""
    groups, length = B.shape[2], x.shape[1]
    inputs = cut(x * delta.unsqueeze(-1), chunk, groups)  # (B, K, G, R, Q, P)
    B, C = (cut(t, chunk, groups) for t in (B, C))  # (B, K, G, 1, Q, N)
    log = cut((delta * A).unsqueeze(-1), chunk, groups)[..., 0].cumsum(-1)  # (B, K, G, R, Q)

    # 1. within a chunk: the masked matrix of the duality
    scores = (C @ B.mT) * decays(log)  # (B, K, G, R, Q, Q)
    y = scores @ inputs
    # 2. what each chunk adds to the state, and the state before each chunk
    to_end = torch.exp(log[..., -1:] - log).unsqueeze(-1)  # (B, K, G, R, Q, 1)
    own = (inputs * to_end).mT @ B  # (B, K, G, R, P, N)
    decay = torch.exp(log[..., -1]).flatten(2)[..., None, None]  # (B, K, H, 1, 1)
    states, last = recurrence.scan(decay, own.flatten(2, 3), h0)
    before = torch.cat((h0.unsqueeze(1), states[:, :-1]), 1).unflatten(2, (groups, -1))
    # 3. what the state before the chunk adds to each token
    y = y + (C @ before.mT) * torch.exp(log).unsqueeze(-1)
    return y.movedim(4, 2).flatten(1, 2).flatten(2, 3)[:, :length], last


def cut(x: torch.Tensor, chunk: int, groups: int) -> torch.Tensor:
    """Cut (B, L, H or G, …) into (B, K, G, R or 1, Q, …), the last filled up with 0; K is not 0."""
    missing = -x.shape[1] % chunk if x.shape[1] else chunk
    if missing:
        x = functional.pad(x, (0, 0) * (x.dim() - 2) + (0, missing))
    x = x.unflatten(1, (-1, chunk))
    return x.unflatten(3, (groups, -1)).movedim(2, 4)


def decays(log: torch.Tensor) -> torch.Tensor:
    """Return exp(log_t - log_s) where s ≤ t, else 0: (…, Q) to (…, Q, Q)."""
    difference = log.unsqueeze(-1) - log.unsqueeze(-2)
    later = torch.ones(difference.shape[-2:], dtype=torch.bool, device=log.device).triu(1)
    # masked before exp: above the diagonal exp could overflow, and its gradient be NaN
    return difference.masked_fill(later, float("-inf")).exp()


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

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

from helpers.models.scan import fused_ssd
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

    A Δ of 0 leaves the state as it is: so padding gets Δ = 0.

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
    y, last = fused_ssd.scan(x, delta, A, B, C, h0, min(chunk, max(1, length)))
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

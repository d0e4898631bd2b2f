"""One token of a state space model: the whole work of decoding.

B  sequences        E  channels        N  numbers of state for each channel
H  heads            P  channels of a head        G  groups; H/G heads share B and C
"""

import torch


def selective_step(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    h: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advance Mamba's state by one token (Gu and Dao 2023, algorithm 2).

    h = exp(Δ A) h + Δ B x, and y = C h + D x. The zero-order hold of A is exact. B has the simpler
    Euler step Δ B, as in the authors' code.

    Args:
        x, delta: (B, E).
        A: (E, N), negative.
        B, C: (B, N).
        D: (E,).
        h: (B, E, N), the state before.

    Returns:
        y (B, E), and the state after, (B, E, N).
    """
    decay = (delta[..., None] * A).exp_()  # (B, E, N)
    h = torch.addcmul((delta * x)[..., None] * B[:, None], decay, h)
    return torch.addcmul((h @ C[..., None])[..., 0], D, x), h


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

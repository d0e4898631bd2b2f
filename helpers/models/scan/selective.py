"""Mamba's selective scan: a state space model whose step, input and output depend on the token.

B  sequences        L  length        D  channels        N  state of a channel

Every channel d has a state h of N numbers, and reads and writes it with its own step Δ:

    h_t = exp(Δ_t A) h_(t-1) + Δ_t B_t x_t        y_t = C_t · h_t + D x_t

A, and the vector D of the skip connection, are parameters. Δ, B and C come from the token: so the
model **selects** what it writes, what it keeps, and what it reads. As arguments, A, B, C and D are
the paper's; in shapes, B and D are counts.

The exact discretisation of B is (Δ A)⁻¹ (exp(Δ A) - 1) Δ B. Mamba computes only its first order,
Δ B: A is exact, B is not.

Source: Gu and Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
arXiv:2312.00752, section 2 (equations 2 and 4), algorithm 2; Δ B is `selective_scan_ref` of the
authors' code, github.com/state-spaces/mamba.
"""

import torch

from helpers.models.scan import blelloch, chunked, fused, recurrence

# Each form scans a and b. "fused" never makes them as a whole.
SCANS = {"loop": recurrence.scan, "tree": blelloch.scan, "chunked": chunked.scan}
FORMS = ("fused", *SCANS)


def selective_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    h0: torch.Tensor | None = None,
    form: str = "fused",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute y (B, L, D) and the last state (B, D, N). All arguments are differentiable.

    A Δ of 0 leaves the state as it is: so padding gets Δ = 0.

    Args:
        x: the inputs (B, L, D).
        delta: Δ, the steps (B, L, D), positive.
        A: (D, N), negative.
        B, C: (B, L, N).
        D: (D,); None: no skip connection.
        h0: the state before the first token (B, D, N); None: zeros.
        form: one of FORMS. All give the same numbers, up to rounding.

    Raises:
        ValueError: an unknown form, or shapes that do not fit.
    """
    check(x, delta, A, B, C, D, h0)
    if form == "fused":
        y, last = fused.scan(x, delta, A, B, C, h0)
    elif form in SCANS:
        h, last = SCANS[form](*discretised(x, delta, A, B), h0)
        y = (h * C.unsqueeze(2)).sum(-1)
    else:
        raise ValueError(f"form is {form!r}: choose one of {', '.join(FORMS)}")
    return (y if D is None else y + D * x), last


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

    This is the whole work of decoding.

    Args:
        x, delta: (B, D).
        A: (D, N), negative.
        B, C: (B, N).
        D: (D,).
        h: (B, D, N), the state before.

    Returns:
        y (B, D), and the state after, (B, D, N).
    """
    decay = (delta[..., None] * A).exp_()  # (B, D, N)
    h = torch.addcmul((delta * x)[..., None] * B[:, None], decay, h)
    return torch.addcmul((h @ C[..., None])[..., 0], D, x), h


def discretised(x, delta, A, B) -> tuple[torch.Tensor, torch.Tensor]:
    """Return decays and inputs of the recurrence, (B, L, D, N) each."""
    a = torch.exp(delta.unsqueeze(-1) * A)
    b = (delta * x).unsqueeze(-1) * B.unsqueeze(2)
    return a, b


def check(x, delta, A, B, C, D, h0):
    """Raise ValueError for the first shape that does not fit x and A."""
    if x.dim() != 3 or A.dim() != 2:
        raise ValueError(f"x is {tuple(x.shape)}, A {tuple(A.shape)}: need (B, L, D) and (D, N)")
    sequences, length, channels = x.shape
    state = A.shape[1]
    wanted = {
        "delta": (delta, (sequences, length, channels)),
        "A": (A, (channels, state)),
        "B": (B, (sequences, length, state)),
        "C": (C, (sequences, length, state)),
        "D": (D, (channels,)),
        "h0": (h0, (sequences, channels, state)),
    }
    fits(wanted, f"x {tuple(x.shape)}")


def fits(wanted: dict, beside: str):
    """Raise ValueError for the first tensor without its shape; {name: (tensor or None, shape)}."""
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}: {beside} needs {shape}")

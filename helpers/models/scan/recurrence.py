"""The linear recurrence h_t = a_t h_(t-1) + b_t as a loop, and its gradients.

B  sequences        L  length        …  any other dims: every number is a recurrence of its own

The gradient is a recurrence too, backward in time. With g_t the gradient of h_t alone, λ_t is the
gradient of everything that depends on h_t:

    λ_t = g_t + a_(t+1) λ_(t+1)        gradient of b_t: λ_t        of a_t: λ_t h_(t-1)

So each form of the scan serves its own backward.

One step h → a h + b is the pair (a, b). Two steps in a row are a pair again: the product of the
decays, and the state at the end. So steps can be combined in any grouping, but not in any order.
This associative operator is behind every parallel scan.

Sources: Blelloch 1990, "Prefix Sums and Their Applications", CMU-CS-90-190, section 1.4.1, for the
operator; Martin and Cundy 2018, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length",
arXiv:1709.04057, section 2, for the gradients.
"""

from collections.abc import Callable

import torch

States = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor]


def combine(earlier: Pair, later: Pair) -> Pair:
    """Return the pair that does the earlier steps, then the later steps.

    a₂ (a₁ h + b₁) + b₂ = (a₂ a₁) h + (a₂ b₁ + b₂). The operator is associative, not commutative.
    """
    (a1, b1), (a2, b2) = earlier, later
    return a2 * a1, torch.addcmul(b2, a2, b1)


def apply(pair: Pair, state: torch.Tensor) -> torch.Tensor:
    """Return the state after the steps of a pair: a h + b."""
    return torch.addcmul(pair[1], pair[0], state)


def scan(
    a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute h_t = a_t h_(t-1) + b_t for all t, one after another.

    It is differentiable in all arguments, any number of times.

    Args:
        a: the decays (B, L, …).
        b: the inputs (B, L, …). a and b broadcast against each other.
        h0: the state before the first input (B, …); None: zeros.

    Returns:
        All states (B, L, …), and the last state (B, …). With L = 0 the last state is h0.

    Raises:
        ValueError: the shapes do not fit.
    """
    return scan_by(states, a, b, h0)


def states(a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor) -> torch.Tensor:
    """The loop itself: L steps of one multiplication and one addition."""
    h, before = torch.empty_like(b), h0
    for t in range(b.shape[1]):
        before = torch.addcmul(b[:, t], a[:, t], before, out=h[:, t])
    return h


def scan_by(states: States, a, b, h0=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scan with a form's own way to compute the states, forward and backward.

    Args:
        states: from a, b (B, L, …) and h0 (B, …), of one dtype, to all states (B, L, …).
    """
    a, b, h0 = fitting(a, b, h0)
    if not b.shape[1]:
        return b, h0
    h = _Recurrence.apply(states, a, b, h0)
    return h, h[:, -1]


def fitting(a, b, h0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Broadcast a and b, fill in h0, and give all three one dtype."""
    if b.dim() < 2:
        raise ValueError(f"b has the shape {tuple(b.shape)}: it needs the dims (B, L, …)")
    try:
        a, b = torch.broadcast_tensors(a, b)
    except RuntimeError as error:
        raise ValueError(
            f"a {tuple(a.shape)} and b {tuple(b.shape)} do not broadcast to one shape (B, L, …)"
        ) from error
    shape = (b.shape[0], *b.shape[2:])
    if h0 is None:
        h0 = b.new_zeros(shape)
    if h0.shape != shape:
        raise ValueError(f"h0 has the shape {tuple(h0.shape)}: b without L is {shape}")
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), h0.dtype)
    return a.to(dtype), b.to(dtype), h0.to(dtype)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, a, b, h0):
        h = states(a, b, h0)
        ctx.states = states
        ctx.save_for_backward(a, h0, h)
        return h

    @staticmethod
    def backward(ctx, gradient):
        a, h0, h = ctx.saved_tensors
        # λ is the recurrence of the reversed sequence; its first step has no later λ.
        decay = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1).conj()
        reversed_ = _Recurrence.apply(
            ctx.states, decay.flip(1), gradient.flip(1), torch.zeros_like(h0)
        )
        total = reversed_.flip(1)  # λ
        before = torch.cat([h0.unsqueeze(1), h[:, :-1]], 1)
        return None, total * before.conj(), total, total[:, 0] * a[:, 0].conj()

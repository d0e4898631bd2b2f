"""The associative operator behind every parallel scan of the linear recurrence.

One step h → a h + b is the pair (a, b). Two steps in a row are a pair again: the product of the
decays, and the state at the end. So steps can be combined in any grouping, but not in any order.

Source: Blelloch 1990, "Prefix Sums and Their Applications", CMU-CS-90-190, section 1.4.1.
"""

import torch

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

"""Compare a student's tensor with the right tensor, and with those that common mistakes give."""

from collections.abc import Mapping

import torch

RIGHT = "right"
ROUNDED = "right to some seven digits: a float32 rounded it"
INFINITE = "not finite"
OTHER = "something else"


def kind_of(found, candidates: Mapping[str, torch.Tensor]) -> str:
    """Name the candidate that the tensor equals; else, how it differs from the right tensor.

    Args:
        candidates: {kind: tensor}, `RIGHT` among them. If two candidates are equal, the first
            counts. They need not have one shape.
    """
    if not isinstance(found, torch.Tensor):
        return f"no tensor: {type(found).__name__}"
    right, found = candidates[RIGHT], found.detach()
    for kind, value in candidates.items():
        if found.shape == value.shape and close(found, value):
            return kind
    if found.shape != right.shape:
        return f"of shape {tuple(found.shape)}, not {tuple(right.shape)}"
    if not torch.isfinite(found.double()).all():
        return INFINITE
    if torch.allclose(found.double(), right, rtol=1e-5, atol=1e-6):
        return ROUNDED
    return OTHER


def close(found: torch.Tensor, value: torch.Tensor) -> bool:
    """To rounding: float64 sums of some tens of numbers of size 1 are right to 1e-14."""
    return torch.allclose(found.double(), value, rtol=1e-12, atol=1e-12)

"""Initialize parts with the plain model's first values, one whole tensor at a time."""

from collections.abc import Callable, Mapping

import torch

from helpers.state.part import Part
from helpers.state.slicing import fill, fits


def first_values(
    parts: Mapping[str, Part],
    local: Mapping[str, torch.Tensor],
    make: Callable[[str, tuple[int, ...]], torch.Tensor],
):
    """Fill local tensors, in place, with the plain model's first values, bit for bit.

    It makes, slices and frees one whole tensor at a time. So a rank needs memory for its own
    tensors and one whole tensor. A tensor that this rank holds in several parts is made once. A
    tensor of which this rank holds nothing is not made.

    Args:
        parts, local: this rank's parts and tensors, by the same keys.
        make: returns the whole tensor of a plain name and shape, the same on every rank:
            `lambda name, shape: first_value(name, shape, seed, layers)`.

    Raises:
        ValueError: the keys differ, or a tensor does not have its part's shape.
    """
    if parts.keys() != local.keys():
        odd = min(parts.keys() ^ local.keys())
        raise ValueError(f"{odd!r} has a part but no tensor, or a tensor but no part")
    keys: dict[str, list[str]] = {}
    for key, part in parts.items():
        fits(part, local[key])
        if part.numel:
            keys.setdefault(part.name, []).append(key)
    for name, same in keys.items():
        plain = make(name, parts[same[0]].shape)
        for key in same:
            fill(parts[key], local[key], plain)
        del plain  # free it before `make` allocates the next tensor

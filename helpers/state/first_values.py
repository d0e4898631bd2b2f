"""First values of parts: those of the plain model, one whole tensor at a time."""

from collections.abc import Callable, Mapping

import torch

from helpers.state.part import Part
from helpers.state.slicing import fill, fits


def first_values(
    parts: Mapping[str, Part],
    local: Mapping[str, torch.Tensor],
    make: Callable[[str, tuple[int, ...]], torch.Tensor],
):
    """Give local tensors their first values, in place: bit for bit those of the plain model.

    One whole tensor at a time is made, sliced and freed, so that a rank never holds more than the
    largest one beside its own. A tensor that this rank holds twice is made once; one of which it
    holds nothing is not made at all.

    Args:
        parts, local: this rank's, by the same keys.
        make: the whole tensor of a plain name and shape, the same on every rank:
            `lambda name, shape: first_value(name, shape, seed, layers)`.

    Raises:
        ValueError: the keys differ, or a tensor does not have the shape that its part says.
    """
    if parts.keys() != local.keys():
        odd = min(parts.keys() ^ local.keys())
        raise ValueError(f"{odd!r} has a part and no tensor, or a tensor and no part")
    keys: dict[str, list[str]] = {}
    for key, part in parts.items():
        fits(part, local[key])
        if part.numel:
            keys.setdefault(part.name, []).append(key)
    for name, same in keys.items():
        plain = make(name, parts[same[0]].shape)
        for key in same:
            fill(parts[key], local[key], plain)
        del plain  # before the next one is made

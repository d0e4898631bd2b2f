"""Copy whole tensors, under plain names, into this rank's parts. No messages."""

from collections.abc import Mapping

import torch

from helpers.state.part import Part
from helpers.state.slicing import fill, fits, take


def load(
    parts: Mapping[str, Part],
    local: Mapping[str, torch.Tensor],
    plain: Mapping[str, torch.Tensor],
):
    """Copy this rank's parts of whole tensors into its local tensors, in place.

    It casts to the local dtype. It checks everything first, and writes nothing if a check fails. It
    ignores names that this rank does not hold.

    Args:
        parts, local: this rank's parts and tensors, by the same keys.
        plain: whole tensors by plain name, as `full` returns them.

    Raises:
        ValueError: the keys differ; a name is missing; or a tensor has another shape.
    """
    if odd := parts.keys() ^ local.keys():
        raise ValueError(f"{min(odd)!r} has a part but no tensor, or a tensor but no part")
    for key, part in parts.items():
        fits(part, local[key])
        found = plain.get(part.name)
        if found is None or tuple(found.shape) != part.shape:
            shape = "missing" if found is None else f"of shape {tuple(found.shape)}"
            raise ValueError(f"{part.name} {part.shape} is {shape} in the tensors to load")
    for key, part in parts.items():
        fill(part, local[key], plain[part.name])


def load_optimizer(
    parts: Mapping[str, Part],
    plain: Mapping[str, Mapping[str, object]],
    device: torch.device | str = "cpu",
) -> dict[str, dict[str, object]]:
    """Slice this rank's share out of whole optimizer state: {key: {slot: value}}; copies.

    Moments keep their dtype and get the part's local shape.

    Args:
        plain: as `full_optimizer` returns it. A missing name has no state (a frozen parameter).
    """
    return {
        key: {slot: loaded(slot, value, part, device) for slot, value in plain[part.name].items()}
        for key, part in parts.items()
        if part.name in plain
    }


def loaded(slot: str, value, part: Part, device):
    if not isinstance(value, torch.Tensor):
        return value
    if slot != "step" and tuple(value.shape) == part.shape:
        return take(part, value.detach()).to(device)
    return value.detach().to(device, copy=True)

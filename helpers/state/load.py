"""From whole tensors under plain names to what this rank holds: no messages."""

from collections.abc import Mapping

import torch

from helpers.state.part import Part
from helpers.state.slicing import fill, fits, take


def load(
    parts: Mapping[str, Part],
    local: Mapping[str, torch.Tensor],
    plain: Mapping[str, torch.Tensor],
):
    """Write this rank's parts of whole tensors into its own, in place; cast to their dtype.

    Nothing is written unless all of it can be. Names that this rank does not hold are ignored.

    Args:
        parts, local: this rank's, by the same keys.
        plain: whole tensors by plain name, as `full` returns.

    Raises:
        ValueError: a name is missing, or a tensor is of another shape; keys that differ.
    """
    if odd := parts.keys() ^ local.keys():
        raise ValueError(f"{min(odd)!r} has a part and no tensor, or a tensor and no part")
    for key, part in parts.items():
        fits(part, local[key])
        found = plain.get(part.name)
        if found is None or tuple(found.shape) != part.shape:
            shape = "missing" if found is None else tuple(found.shape)
            raise ValueError(f"{part.name} {part.shape} is {shape} in what is loaded")
    for key, part in parts.items():
        fill(part, local[key], plain[part.name])


def load_optimizer(
    parts: Mapping[str, Part],
    plain: Mapping[str, Mapping[str, object]],
    device: torch.device | str = "cpu",
) -> dict[str, dict[str, object]]:
    """This rank's share of whole optimizer state: {key: {slot: value}}; copies.

    Moments keep their dtype and get the part's local shape.

    Args:
        plain: as `full_optimizer` returns. A name that is missing has no state (it is frozen).
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

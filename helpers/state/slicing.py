"""Between whole tensors and this rank's parts of them: slice, initialize, load. No messages."""

from collections.abc import Callable, Mapping

import torch

from helpers.state.part import Part
from helpers.state.pieces import pieces, slices


def take(part: Part, plain: torch.Tensor) -> torch.Tensor:
    """Slice this rank's part out of a whole tensor: a copy, of the part's local shape.

    Raises:
        ValueError: the tensor does not have the plain shape.
    """
    local = torch.empty(part.local_shape, dtype=plain.dtype, device=plain.device)
    fill(part, local, plain)
    return local


@torch.no_grad()
def fill(part: Part, local: torch.Tensor, plain: torch.Tensor):
    """Copy this rank's part of a whole tensor into the local tensor, cast to the local dtype.

    Raises:
        ValueError: a tensor does not have the shape that the part names.
    """
    fits(part, local, plain)
    for piece in pieces(part):
        piece.of(local).copy_(plain[slices(piece.box)])


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
    same_keys(parts, local, "tensor")
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
    same_keys(parts, local, "tensor")
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

    def loaded(slot: str, value, part: Part):
        if not isinstance(value, torch.Tensor):
            return value
        if slot != "step" and tuple(value.shape) == part.shape:
            return take(part, value.detach()).to(device)
        return value.detach().to(device, copy=True)

    return {
        key: {slot: loaded(slot, value, part) for slot, value in plain[part.name].items()}
        for key, part in parts.items()
        if part.name in plain
    }


def fits(part: Part, local: torch.Tensor, plain: torch.Tensor | None = None):
    """Check that a local tensor has the part's local shape, and a whole tensor the plain shape.

    Raises:
        ValueError: a shape differs.
    """
    if tuple(local.shape) != part.local_shape:
        raise ValueError(
            f"the local tensor of {part} has shape {tuple(local.shape)}, not {part.local_shape}"
        )
    if plain is not None and tuple(plain.shape) != part.shape:
        raise ValueError(
            f"the whole tensor of {part.name} has shape {tuple(plain.shape)}, not {part.shape}"
        )


def same_keys(parts: Mapping[str, Part], given: Mapping[str, object], what: str):
    """Check that parts and tensors (or gradients) have the same keys.

    Raises:
        ValueError: the keys differ.
    """
    if odd := parts.keys() ^ given.keys():
        raise ValueError(f"{min(odd)!r} has a part but no {what}, or a {what} but no part")

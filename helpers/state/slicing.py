"""Copy between a whole plain tensor and this rank's part of it. No messages."""

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
    fits(part, local)
    if tuple(plain.shape) != part.shape:
        raise ValueError(
            f"the whole tensor of {part.name} has shape {tuple(plain.shape)}, not {part.shape}"
        )
    for piece in pieces(part):
        piece.of(local).copy_(plain[slices(piece.box)])


@torch.no_grad()
def put(part: Part, local: torch.Tensor, plain: torch.Tensor):
    """Copy this rank's numbers to their place in a whole tensor.

    Raises:
        ValueError: as `fill` raises.
    """
    fits(part, local)
    if tuple(plain.shape) != part.shape:
        raise ValueError(
            f"the whole tensor of {part.name} has shape {tuple(plain.shape)}, not {part.shape}"
        )
    for piece in pieces(part):
        plain[slices(piece.box)].copy_(piece.of(local))


def fits(part: Part, local: torch.Tensor):
    """Check that a local tensor has the part's local shape.

    Raises:
        ValueError: the shape differs.
    """
    if tuple(local.shape) != part.local_shape:
        raise ValueError(
            f"the local tensor of {part} has shape {tuple(local.shape)}, not {part.local_shape}"
        )

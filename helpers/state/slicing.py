"""Between a whole plain tensor and this rank's part of it, on one rank: no messages."""

import torch

from helpers.state.part import Part
from helpers.state.pieces import pieces, slices


def take(part: Part, plain: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor: a copy of the part's local shape.

    Raises:
        ValueError: the tensor has another shape than the plain one.
    """
    local = torch.empty(part.local_shape, dtype=plain.dtype, device=plain.device)
    fill(part, local, plain)
    return local


@torch.no_grad()
def fill(part: Part, local: torch.Tensor, plain: torch.Tensor):
    """Write this rank's part of a whole tensor into its local tensor; cast to its dtype.

    Raises:
        ValueError: a tensor does not have the shape that the part says.
    """
    fits(part, local)
    if tuple(plain.shape) != part.shape:
        raise ValueError(f"{part.name} is {part.shape}, and the tensor is {tuple(plain.shape)}")
    for piece in pieces(part):
        piece.of(local).copy_(plain[slices(piece.box)])


@torch.no_grad()
def put(part: Part, local: torch.Tensor, plain: torch.Tensor):
    """Write this rank's numbers to their place in a whole tensor.

    Raises:
        ValueError: as for `fill`.
    """
    fits(part, local)
    if tuple(plain.shape) != part.shape:
        raise ValueError(f"{part.name} is {part.shape}, and the tensor is {tuple(plain.shape)}")
    for piece in pieces(part):
        plain[slices(piece.box)].copy_(piece.of(local))


def fits(part: Part, local: torch.Tensor):
    """Check that a local tensor has the part's shape."""
    if tuple(local.shape) != part.local_shape:
        raise ValueError(f"the local tensor of {part} is {part.local_shape}, not {local.shape}")

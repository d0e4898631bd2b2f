"""Which parts get weight decay: the plain model's rule, whatever the local shape."""

from helpers.state.part import Part


def decays(part: Part) -> bool:
    """Whether weight decay applies: the plain tensor has at least two dims.

    The local shape cannot decide: a flat range of a matrix has one dim.
    """
    return len(part.shape) >= 2

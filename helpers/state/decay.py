"""Which parts decay: the rule of the plain model, whatever shape a rank's own tensor has."""

from helpers.state.part import Part


def decays(part: Part) -> bool:
    """Whether weight decay applies: to matrices, as the plain model has them.

    The local shape cannot say it: a flat range of a matrix has one dim.
    """
    return len(part.shape) >= 2

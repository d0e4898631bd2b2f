"""Which parts get weight decay: the plain model's rule, whatever the local shape."""

from helpers.state.part import Part

KEPT = "A_log"  # the decays of a state space model, as in the code of Mamba's authors


def decays(part: Part) -> bool:
    """Whether weight decay applies: the plain tensor is a matrix, and not a state's decays.

    The local shape cannot decide: a flat range of a matrix has one dim.
    """
    return len(part.shape) >= 2 and not part.name.endswith(KEPT)

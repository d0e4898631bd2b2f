"""How fast the way to offloaded numbers must be: efficiency against bandwidth.

s  tokens of a sequence      b  sequences of a rank      D  width      c  blocks for each checkpoint
P  parameters                W  bytes/second              F  FLOP/s that the device reaches alone

A step computes 8 s b P FLOPs: 2 s b P forward, 4 s b P backward, 2 s b P for the recomputation of
the activations. It moves, in 16 and 32 bits:

    parameters and gradients    8 P bytes            2 P each: parameters in the forward, in the
                                                     recomputation and in the backward; gradients
    optimizer state            32 P bytes            16 P are read, 16 P are written
    activation checkpoints      4 s b D L/c bytes    2 s b D are written for each of L/c, then read

The quotient is the **arithmetic intensity** A, in FLOPs per byte. Of an L-block model, P = 12 L D².
If nothing overlaps, the efficiency is A W / (A W + F). If all messages overlap the computation, it
is min(1, A W / F).

Source: Rajbhandari et al. 2021, "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep
Learning", arXiv:2104.07857, section 4. It never lets the two overlap in its figure 3.
"""

KINDS = ("parameters and gradients", "optimizer state", "activation checkpoints")


def intensity(
    kind: str, *, tokens: float = 0.0, width: int = 0, every: int = 1, recompute: bool = True
) -> float:
    """FLOPs of a step for each byte that it moves of one kind.

    Args:
        kind: one of KINDS.
        tokens: s b, of a rank's step. Activation checkpoints do not depend on it.
        width: D, for activation checkpoints.
        every: c, the blocks between two checkpoints.
        recompute: False: the step has 6 s b P FLOPs, and uses the parameters twice.

    Raises:
        ValueError: no such kind, or its sizes are missing.
    """
    if kind not in KINDS:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    flops = 8 if recompute else 6  # for each token and parameter
    if kind == "activation checkpoints":
        if not width or not recompute:
            raise ValueError("activation checkpoints need a width, and recomputation")
        return flops * 12 * width * every / 4
    if not tokens:
        raise ValueError(f"the intensity of {kind} needs the tokens of a step")
    moved = 32 if kind == "optimizer state" else 8 if recompute else 6
    return flops * tokens / moved


def efficiency(ratio: float, bandwidth: float, peak: float, *, overlap: bool = False) -> float:
    """The share of its time in which the device computes.

    Args:
        ratio: A, in FLOPs per byte; see `intensity`.
        bandwidth: W, in bytes/second.
        peak: F, in FLOP/s.
        overlap: whether all messages overlap the computation.
    """
    fed = ratio * bandwidth / peak  # computing time over moving time
    return min(1.0, fed) if overlap else fed / (1 + fed)


def bandwidth_for(share: float, ratio: float, peak: float, *, overlap: bool = False) -> float:
    """The bytes/second that give this efficiency: the inverse of `efficiency`.

    Raises:
        ValueError: the efficiency is not between 0 and 1; 1 needs an overlap.
    """
    if not 0 < share <= 1 or (share == 1 and not overlap):
        raise ValueError(f"an efficiency is between 0 and 1, not {share}; 1 needs an overlap")
    return peak / ratio * (share if overlap else share / (1 - share))

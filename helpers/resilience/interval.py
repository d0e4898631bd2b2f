"""How often to write a checkpoint, if faults come at random.

T  seconds of training between two checkpoints     C  seconds to write one
M  mean seconds between faults                     R  seconds to restart after a fault

A fault loses the training since the last checkpoint. Faults are a Poisson process: they come at
any time, also while a checkpoint is written or the training restarts.

Sources: Young 1974, "A First Order Approximation to the Optimum Checkpoint Interval"; Daly 2006,
"A higher order estimate of the optimum checkpoint interval for restart dumps".
"""

import math

from scipy.special import lambertw


def young(write: float, between: float) -> float:
    """Return Young's interval, sqrt(2 C M): good while C is much smaller than M.

    Args:
        write: C, seconds.
        between: M, seconds.
    """
    return math.sqrt(2 * positive("write", write) * positive("between", between))


def daly(write: float, between: float) -> float:
    """Return Daly's interval: two more terms of the series, less the time to write.

    From C = 2 M on, it is M: a checkpoint is hardly ever finished.
    """
    if positive("write", write) >= 2 * positive("between", between):
        return between
    small = write / (2 * between)
    return young(write, between) * (1 + math.sqrt(small) / 3 + small / 9) - write


def optimal(write: float, between: float) -> float:
    """Return the interval of the highest goodput, without an approximation.

    The derivative of `expected_seconds` over T is zero at T = M (1 + W(-exp(-C/M - 1))), where W is
    Lambert's function. The restart R does not matter: it costs the same at every interval.
    """
    share = positive("write", write) / positive("between", between)
    return between * (1 + float(lambertw(-math.exp(-share - 1)).real))


def expected_seconds(every: float, write: float, between: float, restart: float = 0.0) -> float:
    """Return the expected seconds for T seconds of training and its checkpoint, faults included.

    With rate 1/M, a stretch of length L without a fault takes M (exp(L/M) - 1) seconds on average,
    if each fault starts it again. Each fault is followed by a restart, which may fail, too.
    """
    for name, value in {"every": every, "write": write, "between": between}.items():
        positive(name, value)
    if not 0 <= restart < math.inf:
        raise ValueError(f"restart is to be 0 or more, and finite, not {restart!r}")
    try:
        return between * math.exp(restart / between) * math.expm1((every + write) / between)
    except OverflowError:  # hardly a stretch is ever finished
        return math.inf


def goodput(every: float, write: float, between: float, restart: float = 0.0) -> float:
    """Return the expected share of the time that is training which counts, in (0, 1)."""
    return every / expected_seconds(every, write, between, restart)


def mean_between(gpus: int, of_one: float) -> float:
    """Return the mean seconds between faults of a job on many GPUs; any of them stops it.

    Args:
        of_one: mean seconds between the faults of one GPU.
    """
    return positive("of_one", of_one) / positive("gpus", gpus)


def positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is to be positive and finite, not {value!r}")
    return value

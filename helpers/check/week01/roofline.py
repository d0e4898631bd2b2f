"""Exercise of week 1, third part: place an operation on the roofline."""

import math

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict

LIMITS = ("memory", "arithmetic")
# Words, then FLOPs, bytes moved, peak in FLOP/s, bandwidth in bytes/s. Published processors, and
# round numbers in between; the ridges are 153, 295 and 5 FLOP per byte.
CASES = (
    ("a product of n = 4096 on an A100", (2 * 4096**3, 6 * 4096**2, 312e12, 2.039e12)),
    ("a vector addition on an A100", (1e9, 12e9, 312e12, 2.039e12)),
    ("a product of n = 512 on an A100", (2 * 512**3, 6 * 512**2, 312e12, 2.039e12)),
    ("the same product on an H100", (2 * 512**3, 6 * 512**2, 989.4e12, 3.35e12)),
    ("a slow processor with fast memory", (4e9, 1e9, 1e11, 2e10)),
    ("the same processor, more FLOPs per byte", (40e9, 1e9, 1e11, 2e10)),
    ("a copy: no FLOPs at all", (0.0, 2e9, 312e12, 2.039e12)),
)


def place_on_roofline(fn) -> Verdict:
    """Check `fn(flops, nbytes, peak, bandwidth) -> (rate, limit)`.

    The rate is the most FLOP/s that the roofline allows (Williams et al. 2009); the limit is
    "memory" or "arithmetic".
    """
    cases = [(where, arguments, {}) for where, arguments in (*CASES, *hidden.more(drawn))]
    return examine_here("place_on_roofline", fn, cases, judge_roofline)


def drawn(random):
    peak, bandwidth = random.uniform(1e12, 9e14), random.uniform(1e11, 4e12)
    nbytes = random.uniform(1e6, 1e9)
    return "another processor", (nbytes * random.uniform(1, 900), nbytes, peak, bandwidth)


def judge_roofline(answer, flops, nbytes, peak, bandwidth):
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise NotRight(f"returned {answer!r}", "Return two values: the rate, and the limit.")
    rate, limit = answer
    given = (
        f"{flops:,.4g} FLOPs, {nbytes:,.4g} bytes; peak {peak:,.4g} FLOP/s, "
        f"bandwidth {bandwidth:,.4g} bytes/s"
    )
    if not is_number(rate):
        raise NotRight(f"the rate is {rate!r}", "Return the rate first, as a number of FLOP/s.")
    seconds = max(flops / peak, nbytes / bandwidth)
    most = flops / seconds
    if not math.isclose(rate, most, rel_tol=1e-9):
        raise NotRight(
            f"{given}\n  your rate is {rate:,.6g} FLOP/s; the roofline allows {most:,.6g}",
            hint_rate(rate, flops, nbytes, peak, bandwidth),
        )
    right = LIMITS[flops / peak > nbytes / bandwidth]
    if limit != right:
        raise NotRight(
            f"{given}\n  your limit is {limit!r}; it is {right!r}",
            hint_limit(limit, flops, nbytes, peak, bandwidth),
        )


def hint_rate(rate, flops, nbytes, peak, bandwidth) -> str:
    """Which common mistake gives this rate?"""
    compute, move = flops / peak, nbytes / bandwidth

    def near(value):
        return math.isclose(rate, value, rel_tol=1e-6)

    if near(max(compute, move)):
        return "That is a time in seconds. How many FLOPs per second is it?"
    if near(flops / nbytes):
        return "That is the arithmetic intensity. Which rate does the memory allow with it?"
    if near(min(peak, nbytes / flops * bandwidth if flops else math.inf)):
        return "Intensity is FLOPs per byte. Did you divide bytes by FLOPs?"
    if near(flops / max(compute, move) / peak):
        return "That is a fraction of the peak. Return FLOP/s."
    if near(flops / (compute + move)):
        return "You added two times. The processor computes and moves bytes at the same time."
    if near(peak):
        return "That is the peak. Does the memory deliver the bytes fast enough for it?"
    if near(flops / move):
        return "That is the rate that the memory allows. Can the processor compute so fast?"
    return "There are two upper bounds: one from the peak, one from the bandwidth. Print both."


def hint_limit(limit, flops, nbytes, peak, bandwidth) -> str:
    """Which common mistake gives this limit?"""
    if limit not in LIMITS:
        return f"Return one of {LIMITS} as the second value."
    if limit == LIMITS[flops > nbytes]:
        return "The boundary is not 1 FLOP per byte. At which intensity do the two limits meet?"
    if limit == LIMITS[flops / nbytes > bandwidth / peak]:
        return "Is the ridge peak / bandwidth, or bandwidth / peak?"
    if limit == LIMITS[flops / peak <= nbytes / bandwidth]:
        return "The two names are swapped: below the ridge, which part waits for which?"
    return "Which of the two times is longer: computing, or moving the bytes?"

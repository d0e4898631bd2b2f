"""Exercise of week 8: stochastic rounding from fp32 to bf16."""

import torch

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict
from helpers.precision.formats import BF16
from helpers.precision.rounding import nearest, neighbours

COUNT = 20_000
FAR = 5.0  # standard errors: a right answer is this far off once in 1.7 million checks


def round_stochastically(fn) -> Verdict:
    """Check `fn(x, generator) -> bf16`: a neighbour of each number, the nearer one more often."""
    torch.manual_seed(hidden.seed(1))
    # positive, so that rounding toward zero and away from it both change the mean
    spread = torch.rand(COUNT) * 2.0 ** torch.randint(-20, 20, (COUNT,))
    exact = torch.randn(COUNT).bfloat16().float()
    cases = [
        ("numbers of bf16", (exact, seeded(1)), {}),
        ("numbers of many sizes", (spread, seeded(2)), {}),
    ]
    for start, step in ((1.0, 2.0**-7), (-3.0, -(2.0**-6)), (2.0**-20, 2.0**-27)):
        for share in (0.9, 0.5, 0.25, 0.1):
            x = torch.full((COUNT,), start + share * step)
            words = f"{COUNT:,} times a number at {share:.0%} of the way from {start:g} to the next"
            cases.append((words, (x, seeded(3)), {}))
    verdict = examine_here("round_stochastically", fn, cases, judge)
    if not verdict:
        return verdict
    twice = [("the same seed, twice", (fn, spread), {}), ("another seed", (fn, spread), {})]
    return examine_here("round_stochastically", seeds, twice, judge_seeds)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def judge(answer, x, generator):
    if not isinstance(answer, torch.Tensor) or answer.dtype is not torch.bfloat16:
        kind = f"a tensor of {answer.dtype}" if isinstance(answer, torch.Tensor) else repr(answer)
        raise NotRight(f"returned {kind}", "Return a tensor of torch.bfloat16, as large as x.")
    if answer.shape != x.shape:
        raise NotRight(f"returned the shape {tuple(answer.shape)}", "Round each number of x.")
    answer = answer.float()
    below, above = neighbours(x, BF16)
    outside = (answer != below) & (answer != above)
    if outside.any():
        k = int(outside.nonzero()[0])
        raise NotRight(
            f"{x[k]:.9g} became {answer[k]:.9g}; its neighbours are {below[k]:.9g} and "
            f"{above[k]:.9g}",
            "The result is one of the two neighbours. How large may the random number be, so that "
            "it reaches the next number at most? A number of bf16 stays as it is.",
        )
    inside = below != above
    if not inside.any():
        return
    judge_shares(answer, x, below, above, inside)


def judge_shares(answer, x, below, above, inside):
    """The mean over many numbers must be the mean of these numbers."""
    up = (answer == above)[inside].double()
    share = ((x - below) / (above - below))[inside].double()
    error = float((share * (1 - share)).sum().sqrt())
    if abs(float((up - share).sum())) <= FAR * error:
        return
    finding = f"{float(up.mean()):.1%} were rounded up, and should be {float(share.mean()):.1%}"
    if torch.equal(answer, nearest(x, BF16)):
        hint = "That is rounding to the nearest: the mean of many equal numbers is off."
    elif (answer.abs() <= x.abs()).all():
        hint = "Every number was rounded toward zero: 16 bits were cut off. What is added before?"
    elif (answer.abs() >= x.abs()).all():
        hint = "Every number was rounded away from zero."
    elif abs(float(up.mean()) - 0.5) < 0.02:
        hint = "Both neighbours are equally frequent. The nearer one must be more frequent."
    elif abs(float((up - (1 - share)).sum())) <= FAR * error:
        hint = "The farther neighbour is the more frequent one. In which direction do you round?"
    else:
        hint = "The chance to round up is the way from the lower neighbour, over the whole way."
    raise NotRight(finding, hint)


def seeds(fn, x):
    first, again, other = (fn(x.clone(), seeded(seed)) for seed in (5, 5, 6))
    return bool(torch.equal(first, again)), not torch.equal(first, other)


def judge_seeds(answer, fn, x):
    same, differs = answer
    if not same or not differs:
        raise NotRight(
            "equal seeds gave different results" if not same else "two seeds gave equal results",
            "Draw the random numbers from the generator: then a training can be repeated.",
        )

"""Exercise of week 2: Chinchilla's objective, on runs from a formula, plus noise."""

import math

import numpy as np

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict

THETA = (6.0073404, 6.0179186, 0.5267228, 0.33917084, 0.2849083)  # Hoffmann et al. 2022, unrounded
DELTA = 1e-3
RELATIVE = 1e-6  # sums in another order differ by 1e-12; log1p or logaddexp likewise
NUMBERS = (  # theta, runs, noise, delta
    ("near the minimum", THETA, 12, 0.004, DELTA),
    ("all within delta", THETA, 5, 0.0003, DELTA),
    ("another start of the search", (10.0, 5.0, -0.5, 1.0, 0.5), 9, 0.01, DELTA),
    ("another delta", THETA, 12, 0.02, 1e-2),
    ("one run", (5.0, 6.0, 0.5, 0.3, 0.3), 1, 0.01, DELTA),
    ("large exponents", (900.0, 20.0, 1.0, 0.3, 0.3), 6, 0.01, DELTA),
    ("small exponents", (-900.0, -850.0, -800.0, 0.3, 0.3), 6, 0.01, DELTA),
)


def huber_objective(fn) -> Verdict:
    """Check `fn(theta, params, tokens, loss, delta) -> sum` (Hoffmann et al. 2022, equation 3)."""
    cases = []
    for name, theta, n, noise, delta in NUMBERS:
        where = f"{name}, {n} run{'s' * (n > 1)}, delta {delta:g}"
        runs = some_runs(n, noise)
        cases.append((where, (theta, *runs) if delta == DELTA else (theta, *runs, delta), {}))
    return examine_here("huber_objective", fn, cases, judge_objective)


def some_runs(n: int, noise: float):
    """Return (params, tokens, loss) by Chinchilla's law, with noise: the same in every process."""
    rng = np.random.default_rng(hidden.seed(n))
    params, tokens = 10 ** rng.uniform(7, 10, n), 10 ** rng.uniform(9, 11, n)
    loss = np.exp(predicted(THETA, params, tokens) + noise * rng.uniform(-1, 1, n))
    return params, tokens, loss


def predicted(theta, params, tokens) -> np.ndarray:
    """Return log L: the log of the sum of three terms, from their logs."""
    a, b, e, alpha, beta = theta
    size, data = a - alpha * np.log(params), b - beta * np.log(tokens)
    return np.logaddexp(np.logaddexp(size, data), e)


def huber(r, delta: float) -> np.ndarray:
    r = np.abs(r)
    return np.where(r <= delta, r * r / 2, delta * (r - delta / 2))


def judge_objective(answer, theta, params, tokens, loss, delta=DELTA):
    if isinstance(answer, np.ndarray) and answer.size == 1:
        answer = answer.item()
    residuals = predicted(theta, params, tokens) - np.log(loss)
    right = float(huber(residuals, delta).sum())
    if np.ndim(answer) and np.size(answer) == len(loss):
        raise NotRight(
            f"returned {np.size(answer)} numbers",
            "That is one for each run, but a search minimises a single number: which?",
        )
    if not is_number(answer):
        raise NotRight(f"returned {answer!r}", "Return one number.")
    if not math.isclose(answer, right, rel_tol=RELATIVE):
        raise NotRight(
            f"you returned {answer:.8g}; right is {right:.8g} (residuals from "
            f"{residuals.min():.3g} to {residuals.max():.3g})",
            hint_objective(answer, theta, params, tokens, loss, delta),
        )


def hint_objective(answer, theta, params, tokens, loss, delta) -> str:
    """Return the hint for the well-known mistake that gives this answer."""
    if not math.isfinite(answer):
        return (
            "An exponential was too large for a float, or all were too small. The log of a sum of "
            "exponentials does not need them: which of the three can be taken out first?"
        )
    for mistake, value in mistakes(theta, params, tokens, loss, delta):
        if np.isfinite(value) and math.isclose(answer, value, rel_tol=RELATIVE):
            return mistake
    if answer < 0:
        return "Huber's loss is never negative: what is a residual's size?"
    return (
        "Take one run and print each step: the three exponents, the log of the sum, the residual, "
        "and its side of delta."
    )


def mistakes(theta, params, tokens, loss, delta):
    """Yield each mistake's hint, and the value that the mistake gives."""
    a, b, e, alpha, beta = theta
    with np.errstate(all="ignore"):
        log_loss = predicted(theta, params, tokens)
        r = log_loss - np.log(loss)
        far = np.abs(r)
        yield (
            "You have averaged the terms. A minimiser stops when little changes: what does a "
            "factor of 1/n do to it?",
            huber(r, delta).mean(),
        )
        squares = "You square every residual, so one outlier dominates. What is delta for?"
        yield squares, (r * r / 2).sum()
        yield squares, (r * r).sum()
        yield (
            "Your residual is of the losses, so a large loss counts more than a small one. Which "
            "difference does the paper use?",
            huber(np.exp(log_loss) - loss, delta).sum(),
        )
        ten = "Which logarithm? The exponents and the logarithms must have the same base."
        yield ten, huber((log_loss - np.log(loss)) / np.log(10), delta).sum()
        yield ten, huber(log_loss - np.log10(loss), delta).sum()
        tens = predicted(theta, np.exp(np.log10(params)), np.exp(np.log10(tokens)))
        yield ten, huber(tens - np.log10(loss), delta).sum()
        yield ten, huber(tens - np.log(loss), delta).sum()
        yield (
            "Beyond delta your line has a slope of 1. What is the parabola's slope at delta?",
            np.where(far <= delta, r * r / 2, far - delta / 2).sum(),
        )
        yield (
            "That is Huber's loss divided by delta. Compare the parabola with the docstring's.",
            huber(r, delta).sum() / delta,
        )
        for line in (delta * far, delta * (far - delta)):
            yield (
                "Your straight line does not begin where the parabola ends. Are the two equal at "
                "delta?",
                np.where(far <= delta, r * r / 2, line).sum(),
            )
        yield (
            "Parabola and straight line have changed places: which fits small residuals?",
            np.where(far > delta, r * r / 2, delta * (far - delta / 2)).sum(),
        )
        for line in (delta * (far - delta / 2), delta * far):
            yield "You use the straight line alone. Which curve belongs near zero?", line.sum()
        yield (
            "That is the sum for a delta of 1e-3. Use the delta that was handed over.",
            huber(r, DELTA).sum() if delta != DELTA else np.nan,
        )
        two = np.logaddexp(a - alpha * np.log(params), b - beta * np.log(tokens))
        for without in (two, two + e):
            yield (
                "Where is E? theta contains its logarithm, and E is one of the three terms.",
                huber(without - np.log(loss), delta).sum(),
            )
        yield (
            "theta contains the logarithms of A, B and E already.",
            huber(np.log(a / params**alpha + b / tokens**beta + e) - np.log(loss), delta).sum(),
        )
        yield (
            "You swapped two exponents: which term is divided by N^alpha?",
            huber(predicted((a, b, e, beta, alpha), params, tokens) - np.log(loss), delta).sum(),
        )
        yield (
            "Which array belongs to which exponent? alpha is the power of N, beta of D.",
            huber(predicted(theta, tokens, params) - np.log(loss), delta).sum(),
        )
        yield (
            "Huber's loss needs a residual's size, not which sign it has. Which residuals are "
            "<= delta?",
            np.where(r <= delta, r * r / 2, delta * (r - delta / 2)).sum(),
        )
        yield (
            "Twice as much as the right sum: compare your parabola with the docstring's.",
            2 * huber(r, delta).sum(),
        )
        signs = predicted((a, b, e, -alpha, -beta), params, tokens)
        yield (
            "Does a larger model make the loss larger? Look at the signs.",
            (huber(signs - np.log(loss), delta).sum()),
        )
        top = np.maximum(np.maximum(a - alpha * np.log(params), b - beta * np.log(tokens)), e)
        yield (
            "You took a term out of the sum of exponentials, and never put back its exponent.",
            huber(log_loss - top - np.log(loss), delta).sum(),
        )
        yield (
            "That is the largest of the three alone. The sum has two more terms.",
            huber(top - np.log(loss), delta).sum(),
        )

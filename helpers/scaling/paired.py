"""Compare two fits by paired bootstraps: how often is one exponent larger than the other?

Two fits to the same runs share the luck of those runs. Their intervals may overlap widely although
the first exponent is larger in almost every resample. So compare the fits resample by resample:
Koehn 2004, "Statistical significance tests for machine translation evaluation", EMNLP.
"""

import numpy as np

from helpers.scaling.chinchilla import ChinchillaFit


def probability_larger(first: ChinchillaFit, second: ChinchillaFit, name: str = "a") -> float:
    """Return the share of paired bootstraps in which `first` has the larger number.

    A share near 1 or 0 means that the order does not depend on which runs were drawn. A share near
    0.5 means that these runs cannot separate the two. A tie or a NaN counts as half. With n
    bootstraps the share p has a standard error of sqrt(p (1 - p) / n).

    Args:
        first, second: fits to the same runs, row by row, with the same `bootstrap` and `seed`. Each
            may count params or tokens, or measure the loss, in its own way.
        name: "E", "A", "B", "alpha", "beta", "a" or "b".

    Raises:
        ValueError: a fit has no bootstraps, or the two drew different rows.
    """
    if first.draws is None or second.draws is None:
        raise ValueError("a fit has no bootstraps: pass bootstrap=200 to fit_chinchilla")
    if not np.array_equal(first.draws, second.draws):
        raise ValueError(
            f"the bootstraps are not paired: {describe(first)} against {describe(second)}; "
            "fit equally many runs, row by row the same, with the same bootstrap and seed"
        )
    ours, theirs = first.samples[name], second.samples[name]
    return float(np.mean(np.where(ours > theirs, 1.0, np.where(ours < theirs, 0.0, 0.5))))


def describe(fit: ChinchillaFit) -> str:
    count, runs = fit.draws.shape
    return f"{count} bootstraps of {runs} runs"

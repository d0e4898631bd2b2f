"""How far to trust a fit: predict the large runs from the small ones, and compare two fits.

Two fits to the same runs share the luck of those runs. Their intervals may overlap widely although
the first exponent is larger in almost every resample. So compare the fits resample by resample:
Koehn 2004, "Statistical significance tests for machine translation evaluation", EMNLP.
"""

from dataclasses import dataclass

import numpy as np

from helpers.scaling.chinchilla import ChinchillaFit, fit_chinchilla
from helpers.scaling.law import FLOPS, observations


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """A fit to the small runs, and its errors on the large ones.

    Attributes:
        fit: of the runs up to `limit` FLOPs.
        compute: FLOPs of each of the other runs.
        errors: predicted/observed - 1 of each of the other runs.
    """

    fit: ChinchillaFit
    limit: float
    compute: np.ndarray
    errors: np.ndarray

    @property
    def mean_error(self) -> float:
        """The mean of the absolute errors."""
        return float(np.abs(self.errors).mean())


def extrapolate(params, tokens, loss, *, share: float = 0.5, **options) -> Extrapolation:
    """Fit to the `share` of the runs with the least compute, and predict the others.

    Args:
        options: of `fit_chinchilla`.

    Raises:
        ValueError: as `fit_chinchilla`; a share that leaves no run to fit or none to predict.
    """
    params, tokens, loss = observations(params=params, tokens=tokens, loss=loss)
    compute = FLOPS * params * tokens
    order = np.argsort(compute, kind="stable")
    count = round(share * len(order))
    if not 0 < count < len(order):
        raise ValueError(f"a share of {share!r} leaves no run to fit, or none to predict")
    small, large = order[:count], order[count:]
    fit = fit_chinchilla(params[small], tokens[small], loss[small], **options)
    predicted = fit.loss(params[large], tokens[large])
    return Extrapolation(
        fit=fit,
        limit=float(compute[small[-1]]),
        compute=compute[large],
        errors=predicted / loss[large] - 1,
    )


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

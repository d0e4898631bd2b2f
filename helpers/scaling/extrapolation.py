"""Fit a law to the small runs and predict the large ones: the real test of a scaling law."""

from dataclasses import dataclass

import numpy as np

from helpers.scaling.chinchilla import ChinchillaFit, fit_chinchilla
from helpers.scaling.law import FLOPS
from helpers.scaling.observations import observations


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

"""Fit on the small runs, predict the large ones: the test that a scaling law is for."""

from dataclasses import dataclass

import numpy as np

from helpers.scaling.chinchilla import ChinchillaFit, fit_chinchilla
from helpers.scaling.law import FLOPS
from helpers.scaling.observations import observations


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """`fit` saw the runs up to `limit` FLOPs. `errors` are predicted/observed - 1 of the others."""

    fit: ChinchillaFit
    limit: float
    compute: np.ndarray
    errors: np.ndarray

    @property
    def mean_error(self) -> float:
        """The mean of the errors' sizes."""
        return float(np.abs(self.errors).mean())


def extrapolate(params, tokens, loss, *, share: float = 0.5, **options) -> Extrapolation:
    """Fit to the `share` of the runs with the least compute, and predict the rest.

    Args:
        options: of `fit_chinchilla`.

    Raises:
        ValueError: as `fit_chinchilla`; a share that leaves no run to fit or to predict.
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

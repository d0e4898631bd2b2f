"""Fit three factors to a few measured steps: how long GPUs, hosts and links take.

The model's rates are known from other machines, so each factor is 1 before any measurement. The fit
weighs the measurements against that. Three rows that are alike, or one row that went wrong, then
change little that they say nothing about:

    minimise  sum of rho(log(predicted / measured) / NOISE)  +  sum of (log factor / PRIOR)²
         over rows                                          over factors

in which rho grows like a square near 0 and linearly beyond (a robust fit).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from helpers.simulate.kernels import Rates

FACTORS = ("compute", "host", "network")
PRIOR = np.array([0.08, 0.08, 0.15])  # of the logarithm of each factor
NOISE = 0.08  # of the logarithm of a step's seconds
ROUNDS, STEP = 10, 0.02

Timed = tuple[Callable[[Rates], float], float]  # predicted seconds by rates, measured seconds


def calibrate(
    rows: Sequence[Timed], rates: Rates | None = None, prior=PRIOR
) -> tuple[Rates, dict[str, float]]:
    """Choose the factors by rows of (prediction as a function of the rates, measured seconds).

    Args:
        prior: how far each factor's logarithm may be from 0 (a standard deviation). Larger for
            machines that the default rates were not fitted to.

    Returns:
        The rates times the factors, and {factor: value}; above 1 is slower than before.

    Raises:
        ValueError: no row, or a measured time that is not positive and finite.
    """
    rates, prior = rates or Rates(), np.asarray(prior)
    if not rows or not all(0 < measured < math.inf for _, measured in rows):
        raise ValueError("calibration needs at least one row, and measured seconds above 0")

    def errors(x) -> np.ndarray:
        scaled = rates.times(**dict(zip(FACTORS, np.exp(x), strict=True)))
        return np.array([math.log(of(scaled) / measured) for of, measured in rows]) / NOISE

    x = np.zeros(len(FACTORS))
    for _ in range(ROUNDS):  # Gauss-Newton, with each row weighted by its own error
        now = errors(x)
        slopes = np.stack([(errors(x + STEP * unit) - now) / STEP for unit in np.eye(len(x))], 1)
        weighted = slopes.T / np.sqrt(1 + now**2)
        change = np.linalg.solve(
            weighted @ slopes + np.diag(prior**-2.0), weighted @ now + x / prior**2
        )
        x = x - change
        if max(abs(change)) < 1e-3:
            break
    factors = {name: float(value) for name, value in zip(FACTORS, np.exp(x), strict=True)}
    return rates.times(**factors), factors

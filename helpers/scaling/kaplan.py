"""Kaplan's power laws: the published allocation, and a fit of the same form.

Kaplan et al. 2020, arXiv:2001.08361. N is without embeddings; compute in PF-days.
"""

from dataclasses import dataclass

import numpy as np

from helpers.scaling.law import plain, positive
from helpers.scaling.observations import distinct, observations

PF_DAY = 1e15 * 86_400  # FLOPs


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """L(x) = (scale / x)^exponent."""

    scale: float
    exponent: float

    def __post_init__(self):
        positive("scale", self.scale)
        positive("exponent", self.exponent)

    def __call__(self, x):
        return plain((self.scale / positive("x", x)) ** self.exponent)


L_N = PowerLaw(scale=8.8e13, exponent=0.076)  # table 5: over parameters, fitted alone


def optimal(pf_days):
    """Return (params, tokens) of the lowest loss for C_min in PF-days.

    Table 6: N ~ C^0.73, D ~ C^0.27.
    """
    compute = positive("pf_days", pf_days)
    return plain(1.3e9 * compute**0.73), plain(2e10 * compute**0.27)


def fit_power_law(x, loss) -> PowerLaw:
    """Fit a power law by least squares of log L on log x.

    Raises:
        ValueError: a value that is not positive and finite (the message names the row), fewer than
            two sizes, or a loss that does not fall.
    """
    x, loss = observations(x=x, loss=loss)
    if distinct(x) < 2:
        raise ValueError("a power law needs at least two sizes: add runs of other sizes")
    slope, height = np.polyfit(np.log(x), np.log(loss), 1)
    if slope >= 0:
        raise ValueError(f"the loss does not fall with size: its slope is {slope:.3g}")
    return PowerLaw(scale=float(np.exp(-height / slope)), exponent=float(-slope))

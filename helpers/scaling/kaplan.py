"""Kaplan's power laws: the published allocation, a fit of the same form, why its exponent differs.

Kaplan et al. 2020 (arXiv:2001.08361) leave the embeddings out of N, and so out of C = 6 N D; their
compute is in PF-days. Hoffmann et al. 2022 (arXiv:2203.15556) count the embeddings. In a small
model most parameters are embeddings. Pearce and Song 2024 (arXiv:2406.12907) show that this
difference explains most of the gap between the exponents 0.73 and 0.50.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from helpers.scaling.law import FLOPS, ChinchillaLaw, distinct, observations, plain, positive

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


@dataclass(frozen=True, kw_only=True)
class Family:
    """GPTs of one shape, from small to large: layers = width / aspect, so N = 12 width^3 / aspect.

    Attributes:
        vocab, context: the rows of the embeddings, which add (vocab + context) width parameters.
        aspect: width per layer.
    """

    vocab: int = 50_257
    context: int = 1024
    aspect: float = 64.0

    def total(self, non_embedding):
        """Return all parameters, for a model with this number besides its embeddings."""
        inner = positive("non_embedding", non_embedding)
        width = (inner * self.aspect / 12) ** (1 / 3)
        return plain(inner + (self.vocab + self.context) * width)

    def non_embedding(self, total):
        """Return the parameters besides the embeddings: the inverse of `total`."""
        positive("total", total)
        log = brentq(
            lambda x: np.log(self.total(np.exp(x)) / total), -30, np.log(total), xtol=1e-13
        )
        return float(np.exp(log))


def bent_exponent(law: ChinchillaLaw, family: Family, small: float, large: float) -> float:
    """Return the exponent that you measure without the embeddings, in a world that obeys `law`.

    N_opt without embeddings is fitted as a power of C = 6 N D, with the same N. The budgets are
    such that N_opt goes from about `small` to `large` parameters. Compare with `law.exponents[0]`.

    Raises:
        ValueError: sizes that are not positive, or not small < large.
    """
    positive("small", small)
    if not small < large:
        raise ValueError(f"small must be below large, not {small!r} and {large!r}")
    ends = [FLOPS * n * law.optimal(law.compute_for(family.total(n)))[1] for n in (small, large)]
    compute = np.geomspace(*ends, 25)
    best = [kaplan_optimal(law, family, c) for c in compute]
    return float(np.polyfit(np.log(compute), np.log(best), 1)[0])


def kaplan_optimal(law: ChinchillaLaw, family: Family, compute: float) -> float:
    """Return N of the lowest loss at C = 6 N D; N and C leave out the embeddings."""
    positive("compute", compute)

    def loss(x):
        inner = np.exp(x)
        return law.loss(family.total(inner), compute / (FLOPS * inner))

    grid = np.linspace(np.log(1e2), np.log(compute / FLOPS), 400)
    near = int(np.argmin([loss(x) for x in grid]))
    span = (grid[max(near - 1, 0)], grid[min(near + 1, len(grid) - 1)])
    found = minimize_scalar(loss, bounds=span, method="bounded", options={"xatol": 1e-10})
    return float(np.exp(found.x))

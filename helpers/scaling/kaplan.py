"""Kaplan's power laws with the published constants, and fits of the same forms.

Kaplan et al. 2020, arXiv:2001.08361. N is without embeddings; loss in nats a token of WebText2;
compute in PF-days. The paper fits its laws separately, so use the constants of one table together:
alpha_D is 0.095 for L(D) alone and 0.103 in L(N, D).
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

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


@dataclass(frozen=True, kw_only=True)
class JointLaw:
    """L(N, D) = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D: equation 1.5."""

    N_c: float
    D_c: float
    alpha_N: float
    alpha_D: float

    def __post_init__(self):
        for name in ("N_c", "D_c", "alpha_N", "alpha_D"):
            positive(name, getattr(self, name))

    def __call__(self, params, tokens):
        params, tokens = positive("params", params), positive("tokens", tokens)
        ratio = self.alpha_N / self.alpha_D
        return plain(((self.N_c / params) ** ratio + self.D_c / tokens) ** self.alpha_D)


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """B_crit(L) = scale / L^(1/exponent), in tokens: equation 5.3.

    A run of S steps at batch B would need S_min = S / (1 + B_crit/B) steps at a very large batch.
    It would need C_min = C / (1 + B/B_crit) of its compute C at a very small batch: equations 5.4
    and 5.5.
    """

    scale: float
    exponent: float

    def __call__(self, loss):
        return plain(self.scale / positive("loss", loss) ** (1 / self.exponent))

    def least_steps(self, steps, batch, loss):
        """S_min: the steps to the same loss at a very large batch."""
        return plain(positive("steps", steps) / (1 + self(loss) / positive("batch", batch)))

    def least_compute(self, compute, batch, loss):
        """C_min: the compute to the same loss at a very small batch."""
        return plain(positive("compute", compute) / (1 + positive("batch", batch) / self(loss)))


# Table 5: each law is fitted alone.
L_N = PowerLaw(scale=8.8e13, exponent=0.076)
L_D = PowerLaw(scale=5.4e13, exponent=0.095)
L_C_NAIVE = PowerLaw(scale=1.6e7, exponent=0.057)  # PF-days, at a fixed batch
L_C_MIN = PowerLaw(scale=3.1e8, exponent=0.050)  # PF-days, at batches well below the critical
B_CRIT = CriticalBatch(scale=2.1e8, exponent=0.21)
# Table 2: fitted together. Never combine these constants with those of table 5.
L_ND = JointLaw(N_c=6.4e13, D_c=1.8e13, alpha_N=0.076, alpha_D=0.103)


def loss_of_steps(params, steps):
    """L(N, S_min) = (N_c/N)^alpha_N + (S_c/S_min)^alpha_S, constants of table 3: equation 1.6."""
    params, steps = positive("params", params), positive("steps", steps)
    return plain((6.5e13 / params) ** 0.077 + (2.1e3 / steps) ** 0.76)


def optimal(pf_days):
    """Return (params, tokens) of the lowest loss for C_min in PF-days.

    Table 6: N ~ C^0.73, D ~ C^0.27.
    """
    compute = positive("pf_days", pf_days)
    return plain(1.3e9 * compute**0.73), plain(2e10 * compute**0.27)


def enough_tokens(params):
    """Return the tokens that keep overfitting below 0.02 nats: 5e3 N^0.74, equation 4.4."""
    return plain(5e3 * positive("params", params) ** 0.74)


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


def fit_joint(params, tokens, loss) -> JointLaw:
    """Fit equation 1.5 by least squares of log L, from several starting points.

    Raises:
        ValueError: a value that is not positive and finite (the message names the row), fewer than
            four runs, or fewer than two sizes of params or tokens.
    """
    params, tokens, loss = observations(params=params, tokens=tokens, loss=loss)
    if min(distinct(params), distinct(tokens)) < 2 or len(params) < 4:
        raise ValueError("the joint law needs four runs, and two sizes of params and of tokens")
    x, y, z = np.log(params), np.log(tokens), np.log(loss)

    def residuals(theta):
        n, d, log_alpha_n, log_alpha_d = theta
        alpha_d = np.exp(log_alpha_d)
        ratio = np.exp(log_alpha_n - log_alpha_d)
        return alpha_d * np.logaddexp(ratio * (n + x.mean() - x), d + y.mean() - y) - z

    starts = [(n, n, np.log(a), np.log(a)) for n in (5.0, 12.0) for a in (0.05, 0.1, 0.3)]
    n, d, alpha_n, alpha_d = lowest(residuals, starts)
    return JointLaw(
        N_c=float(np.exp(n + x.mean())),
        D_c=float(np.exp(d + y.mean())),
        alpha_N=float(np.exp(alpha_n)),
        alpha_D=float(np.exp(alpha_d)),
    )


def lowest(residuals, starts) -> np.ndarray:
    """Return the point with the lowest sum of squares, over all starting points."""
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 2000}
    return min((least_squares(residuals, s, **tight) for s in starts), key=lambda fit: fit.cost).x


def fit_trade_off(batch, steps) -> tuple[float, float]:
    """Fit (S_min, B_crit) of S = S_min (1 + B_crit/B): steps to one loss at several batches.

    Equations 5.1 and 5.4; McCandlish et al. 2018 (arXiv:1812.06162, equation 2.11). The fit is
    least squares of log S, so that relative errors have equal weight. B_crit has the unit of
    `batch`.

    Raises:
        ValueError: a value that is not positive and finite (the message names the row), fewer than
            two batches, or steps that do not fall as the batch grows.
    """
    batch, steps = observations(batch=batch, steps=steps)
    if distinct(batch) < 2:
        raise ValueError("the trade-off needs at least two batch sizes")
    if np.polyfit(np.log(batch), np.log(steps), 1)[0] >= 0:
        raise ValueError("the steps do not fall as the batch grows")
    x, y = np.log(batch), np.log(steps)

    def residuals(theta):
        return theta[0] + np.logaddexp(0.0, theta[1] - x) - y

    starts = [(y.min(), middle) for middle in (x.min(), x.mean(), x.max())]
    least, critical = np.exp(lowest(residuals, starts))
    return float(least), float(critical)


def fit_critical_batch(loss, critical) -> CriticalBatch:
    """Fit equation 5.3 by least squares of log B_crit on log L.

    The points are the results of `fit_trade_off` at several losses.

    Raises:
        ValueError: a value that is not positive and finite (the message names the row), fewer than
            two losses, or batches that do not grow as the loss falls.
    """
    loss, critical = observations(loss=loss, critical=critical)
    if distinct(loss) < 2:
        raise ValueError("the law of the critical batch needs at least two losses")
    slope, height = np.polyfit(np.log(loss), np.log(critical), 1)
    if slope >= 0:
        raise ValueError("the critical batch does not grow as the loss falls")
    return CriticalBatch(scale=float(np.exp(height)), exponent=float(-1 / slope))

"""Chinchilla's third approach: fit E, A, B, alpha and beta to runs of different N and D.

Hoffmann et al. 2022, arXiv:2203.15556, section 3.3 and appendix D.2. Besiroglu et al. 2024
(arXiv:2404.10102) found two errors in the paper's own fit. First, the paper averaged the Huber
terms instead of summing them. The optimiser's tolerance was then too loose, and it stopped early at
wrong exponents. Second, the bootstrap intervals were narrower than 240 runs allow.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from helpers.scaling.law import ChinchillaLaw, distinct, observations
from helpers.scaling.objective import Objective
from helpers.scaling.search import descend, grid, minima

NAMES = ("E", "A", "B", "alpha", "beta", "a", "b")
TIE = 1e-6  # minima tie if their objectives differ by less than this, relatively,
APART = 0.01  # and their exponents a differ by more than this
ROUND = 50  # bootstraps fitted together


class NotIdentified(UserWarning):
    """The runs do not determine the five numbers."""


@dataclass(frozen=True, kw_only=True)
class ChinchillaFit(ChinchillaLaw):
    """A fitted law. If the runs do not determine it, `doubts` gives the reasons.

    Attributes:
        objective: the sum of the Huber terms at the minimum.
        intervals: "E", "A", "B", "alpha", "beta", "a", "b" -> (low, high), from the bootstraps;
            empty without bootstraps.
        doubts: the reasons why the runs do not determine the fit; empty if they do.
        runs: the (params, tokens, loss) that the law was fitted to.
        samples: the same names -> (bootstraps,) values, one per bootstrap.
        draws: (bootstraps, runs), how often each bootstrap drew each run.
    """

    objective: float
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    runs: tuple = field(repr=False, default=(), compare=False)
    samples: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict, compare=False)
    draws: np.ndarray | None = field(repr=False, default=None, compare=False)

    def __post_init__(self):
        """Accept any numbers, unlike `ChinchillaLaw`: `doubts` covers the unusual ones."""

    @property
    def exponents(self) -> tuple[float, float]:
        """(a, b) of N_opt ~ C^a and D_opt ~ C^b; NaN if alpha or beta is not positive."""
        if min(self.alpha, self.beta) <= 0:
            return float("nan"), float("nan")
        return super().exponents

    def optimal(self, compute):
        """Return (params, tokens) of the lowest loss for `compute` FLOPs.

        Raises:
            ValueError: the fit has no optimum, because one of its numbers is not positive.
        """
        if not min(self.alpha, self.beta, self.A, self.B) > 0:
            raise ValueError("the fitted law has no optimum: " + "; ".join(self.doubts))
        return super().optimal(compute)

    def picture(self):
        """Plot predicted against observed loss, and the bootstraps' exponents."""
        from helpers.plots.agreement import fit_quality

        params, tokens, loss = self.runs
        return fit_quality(params, loss, self.loss(params, tokens), self.samples.get("a"))

    def _repr_png_(self):
        return self.picture()._repr_png_()


def fit_chinchilla(
    params,
    tokens,
    loss,
    *,
    delta: float = 1e-3,
    bootstrap: int = 0,
    seed: int = 0,
    confidence: float = 0.95,
    starts: np.ndarray | None = None,
) -> ChinchillaFit:
    """Fit L = E + A/N^alpha + B/D^beta: minimise the summed Huber loss on log L, globally.

    Args:
        params, tokens, loss: one number for each run; loss in nats a token.
        delta: of the Huber loss, on the log of the loss.
        bootstrap: how many times to draw as many runs with replacement and fit again. These fits
            start from the full fit's minima and from points around the lowest.
        seed: of the bootstrap. Fits with the same seed to equally many runs draw the same rows.
        confidence: of `intervals`, which are percentiles of the bootstraps.
        starts: (S, 5) starting points (log A, log B, log E, alpha, beta); None: the paper's grid of
            4,500.

    Raises:
        ValueError: a value that is not positive and finite (the message names the row), columns of
            different lengths, or a delta, bootstrap or confidence out of range.

    Warns:
        NotIdentified: too few sizes, a limit reached, minima that tie, or runs whose loss barely
            distinguishes the terms.
    """
    params, tokens, loss = observations(params=params, tokens=tokens, loss=loss)
    if not (np.isfinite(delta) and delta > 0):
        raise ValueError(f"delta must be positive, not {delta!r}")
    if bootstrap < 0 or not 0 < confidence < 1:
        raise ValueError(f"bootstrap {bootstrap!r} or confidence {confidence!r} is out of range")
    problem = Objective.of(params, tokens, loss, delta)
    starts = grid() if starts is None else np.atleast_2d(np.asarray(starts, dtype=np.float64))
    theta, f, steepness = minima(problem, starts)
    doubts = tuple(find_doubts(problem, params, tokens, theta, f, steepness))
    for doubt in doubts:
        warnings.warn(f"the fit is not identified: {doubt}", NotIdentified, stacklevel=2)
    samples, draws = {}, None
    if bootstrap:
        again, draws = resampled(problem, theta, f, bootstrap, seed)
        samples = numbers(again)
    tails = [50 * (1 - confidence), 50 * (1 + confidence)]
    intervals = {
        name: tuple(float(q) for q in np.percentile(values, tails))
        for name, values in samples.items()
    }
    best = {name: float(values[0]) for name, values in numbers(theta[:1]).items()}
    return ChinchillaFit(
        **{name: best[name] for name in ("E", "A", "B", "alpha", "beta")},
        objective=float(f[0]),
        intervals=intervals,
        doubts=doubts,
        runs=(params, tokens, loss),
        samples=samples,
        draws=draws,
    )


def numbers(theta: np.ndarray) -> dict[str, np.ndarray]:
    """Map (S, 5) points to the named numbers, (S,) each."""
    a, b, e, alpha, beta = theta.T
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        share = beta / (alpha + beta)
        values = (np.exp(e), np.exp(a), np.exp(b), alpha, beta, share, 1 - share)
    return dict(zip(NAMES, values, strict=True))


def resampled(problem, theta, f, count, seed) -> tuple[np.ndarray, np.ndarray]:
    """Fit again to runs drawn with replacement.

    Returns:
        (minima (count, 5), how often each run was drawn (count, n)).
    """
    rng = np.random.default_rng(seed)
    n = len(problem.z)
    tied = theta[:3][f[:3] <= 1.5 * f[0]]  # any of these may be the lowest of a resample
    around = theta[0] + rng.normal(size=(2, 5)) * [1.0, 1.0, 0.1, 0.05, 0.05]
    starts = problem.inward(np.concatenate([tied, around]))
    found, drawn = [], []
    for done in range(0, count, ROUND):
        draws = min(ROUND, count - done)
        drawn.append(rng.multinomial(n, np.full(n, 1 / n), size=draws))
        weights = drawn[-1].astype(np.float64)
        every = np.repeat(weights, len(starts), axis=0)
        points = np.tile(starts, (draws, 1))
        points, _, _ = descend(problem, points, newton=False, steps=8, weights=every)
        points, value, _ = descend(
            problem, points, newton=True, steps=80, weights=every, tolerance=1e-9
        )
        lowest = value.reshape(draws, -1).argmin(-1)
        found.append(points.reshape(draws, -1, 5)[np.arange(draws), lowest])
    return problem.outward(np.concatenate(found)), np.concatenate(drawn)


def find_doubts(problem, params, tokens, theta, f, steepness):
    """Yield each reason why the runs do not determine the minimum."""
    if len(params) <= 5:
        yield f"only {len(params)} runs for five numbers"
    for name, values in (("params", params), ("tokens", tokens)):
        if (sizes := distinct(values)) < 3:
            yield f"only {sizes} sizes of {name}: a power law with a constant needs three"
    if steepness[0] > 1e-8:
        yield f"the search has not converged: the gradient is still {steepness[0]:.1g}"
    best = numbers(theta[:1])
    r, *shares = (array[0] for array in problem._residuals(problem.inward(theta[:1])))
    for name, share in zip("ABE", shares, strict=True):
        if share.max() < 1e-3:
            yield f"a limit is reached: the term of {name} is below 0.1 % of every loss"
    for name in ("alpha", "beta"):
        if not 0.01 < best[name][0] < 5:
            yield f"a limit is reached: {name} = {best[name][0]:.3g}"
    tied = numbers(theta[f <= f[0] * (1 + TIE) + 1e-15])["a"]
    spread = np.abs(tied - tied[0])
    if (spread > APART).any():
        yield f"minima tie: a = {tied[0]:.3f} and {tied[spread.argmax()]:.3f} fit equally well"
    yield from flatness(problem, theta[0], r)


def flatness(problem, theta, r):
    """Yield a doubt for each exponent whose standard error exceeds half of it."""
    errors = standard_errors(problem, theta, r)
    if errors is None:
        yield "these params and tokens do not distinguish two of the terms"
        return
    for name, value, error in zip(("alpha", "beta"), theta[3:], errors, strict=True):
        if error > 0.5 * abs(value):
            yield f"{name} = {value:.3g} has a standard error of about {error:.2g}"


def standard_errors(problem, theta, r) -> tuple[float, float] | None:
    """Estimate the standard errors of alpha and beta; None if the runs do not determine them.

    For residuals of spread sigma, cov = pi/2 sigma^2 (J^T J)^-1. This formula is for least absolute
    deviations, which the Huber loss nearly is when delta is small compared with sigma.
    """
    _, p, q, s = (array[0] for array in problem._residuals(problem.inward(theta[None])))
    slopes = np.stack([p, q, s, -problem.x * p, -problem.y * q])
    square = slopes @ slopes.T
    if np.linalg.cond(square) > 1e13:
        return None
    sigma = np.median(np.abs(r)) / 0.6745
    errors = sigma * np.sqrt(np.pi / 2 * np.diag(np.linalg.inv(square)))
    _, sx, _, sy = problem.scales
    return errors[3] / sx, errors[4] / sy

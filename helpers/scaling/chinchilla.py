"""Chinchilla's third approach: E, A, B, alpha and beta from runs of different N and D.

Hoffmann et al. 2022, arXiv:2203.15556, section 3.3 and appendix D.2. Two traps, which Besiroglu et
al. 2024 (arXiv:2404.10102) found in the paper's own fit: Huber terms that are averaged instead of
summed make the optimiser's tolerance too loose, and it stops early, at wrong exponents; and
bootstrap intervals narrower than 240 runs can give.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from helpers.scaling.descent import descend
from helpers.scaling.law import ChinchillaLaw
from helpers.scaling.objective import Objective
from helpers.scaling.observations import distinct, observations
from helpers.scaling.progress import shown
from helpers.scaling.search import grid, minima

NAMES = ("E", "A", "B", "alpha", "beta", "a", "b")
TIE = 1e-6  # minima whose objectives differ by less, relatively, tie
APART = 0.01  # unless their exponents a agree so closely
ROUND = 50  # bootstraps at a time


class NotIdentified(UserWarning):
    """The runs do not determine the five numbers."""


@dataclass(frozen=True, kw_only=True)
class ChinchillaFit(ChinchillaLaw):
    """A fitted law. It may be no sensible one: then `doubts` says why.

    Attributes:
        objective: sum of the Huber terms at the minimum.
        intervals: "E", "A", "B", "alpha", "beta", "a", "b" -> (low, high), from bootstraps; empty
            without them.
        doubts: why the fit is not identified; empty if it is.
        runs: (params, tokens, loss) that it was fitted to.
    """

    objective: float
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    runs: tuple = field(repr=False, default=(), compare=False)
    samples: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict, compare=False)

    def __post_init__(self):
        """Whatever was found is kept, and doubted."""

    @property
    def exponents(self) -> tuple[float, float]:
        """(a, b) of N_opt ~ C^a and D_opt ~ C^b; NaN where alpha or beta is not positive."""
        if min(self.alpha, self.beta) <= 0:
            return float("nan"), float("nan")
        return super().exponents

    def optimal(self, compute):
        """As `ChinchillaLaw.optimal`.

        Raises:
            ValueError: the fit has no optimum, since an exponent is not positive.
        """
        if not min(self.alpha, self.beta, self.A, self.B) > 0:
            raise ValueError("the fitted law has no optimum: " + "; ".join(self.doubts))
        return super().optimal(compute)

    def picture(self):
        """Predicted against observed loss, and the bootstraps' exponents."""
        from helpers.plots.scaling import fit_quality

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
    progress: bool = False,
) -> ChinchillaFit:
    """Fit L = E + A/N^alpha + B/D^beta by the global minimum of the summed Huber loss on log L.

    Args:
        params, tokens, loss: one number for each run; loss in nats a token.
        delta: Huber's, on the log of the loss.
        bootstrap: how many times to fit again to as many runs drawn with replacement. Those fits
            start from the full fit's minima and from points around them.
        seed: of the bootstrap.
        confidence: of `intervals`, which lie between the bootstraps' percentiles.
        starts: (S, 5) points (log A, log B, log E, alpha, beta) to start from; None: the paper's
            grid of 4,500.
        progress: whether to show how far it is.

    Raises:
        ValueError: a value that is not positive and finite (names the row), columns of different
            lengths, or a delta, bootstrap or confidence out of range.

    Warns:
        NotIdentified: too few sizes, a limit reached, minima that tie, or data along which the
            loss barely tells the terms apart.
    """
    params, tokens, loss = observations(params=params, tokens=tokens, loss=loss)
    if not (np.isfinite(delta) and delta > 0):
        raise ValueError(f"delta must be positive, not {delta!r}")
    if bootstrap < 0 or not 0 < confidence < 1:
        raise ValueError(f"bootstrap {bootstrap!r} or confidence {confidence!r} is out of range")
    problem = Objective.of(params, tokens, loss, delta)
    starts = grid() if starts is None else np.atleast_2d(np.asarray(starts, dtype=np.float64))
    with shown("starts", len(starts), progress) as tick:
        theta, f, steepness = minima(problem, starts, tick)
    doubts = tuple(find_doubts(problem, params, tokens, theta, f, steepness))
    for doubt in doubts:
        warnings.warn(f"the fit is not identified: {doubt}", NotIdentified, stacklevel=2)
    samples = {}
    if bootstrap:
        with shown("bootstraps", bootstrap, progress) as tick:
            samples = numbers(resampled(problem, theta, f, bootstrap, seed, tick))
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
    )


def numbers(theta: np.ndarray) -> dict[str, np.ndarray]:
    """(S, 5) points -> the named numbers, (S,) each."""
    a, b, e, alpha, beta = theta.T
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        share = beta / (alpha + beta)
        values = (np.exp(e), np.exp(a), np.exp(b), alpha, beta, share, 1 - share)
    return dict(zip(NAMES, values, strict=True))


def resampled(problem, theta, f, count, seed, tick) -> np.ndarray:
    """(count, 5) minima for runs drawn with replacement."""
    rng = np.random.default_rng(seed)
    n = len(problem.z)
    tied = theta[:3][f[:3] <= 1.5 * f[0]]  # other minima that a resampling may make the lowest
    around = theta[0] + rng.normal(size=(2, 5)) * [1.0, 1.0, 0.1, 0.05, 0.05]
    starts = problem.inward(np.concatenate([tied, around]))
    found = []
    for done in range(0, count, ROUND):
        draws = min(ROUND, count - done)
        weights = rng.multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64)
        every = np.repeat(weights, len(starts), axis=0)
        points = np.tile(starts, (draws, 1))
        points, _, _ = descend(problem, points, newton=False, steps=8, weights=every)
        points, value, _ = descend(
            problem, points, newton=True, steps=80, weights=every, tolerance=1e-9
        )
        lowest = value.reshape(draws, -1).argmin(-1)
        found.append(points.reshape(draws, -1, 5)[np.arange(draws), lowest])
        tick(done + draws)
    return problem.outward(np.concatenate(found))


def find_doubts(problem, params, tokens, theta, f, steepness):
    """Yield each reason why the runs do not determine the minimum."""
    if len(params) <= 5:
        yield f"{len(params)} runs for five numbers"
    for name, values in (("params", params), ("tokens", tokens)):
        if (sizes := distinct(values)) < 3:
            yield f"{sizes} sizes of {name}, and a power law with a constant needs three"
    if steepness[0] > 1e-8:
        yield f"the search has not converged: a slope of {steepness[0]:.1g} is left"
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
    """Whether the fitted exponents' standard errors exceed half of them.

    For residuals of spread sigma, cov = pi/2 sigma^2 (J^T J)^-1, of least absolute deviations: what
    Huber's loss is nearly, where delta is small beside sigma.
    """
    _, p, q, s = (array[0] for array in problem._residuals(problem.inward(theta[None])))
    slopes = np.stack([p, q, s, -problem.x * p, -problem.y * q])
    square = slopes @ slopes.T
    if np.linalg.cond(square) > 1e13:
        yield "two of its terms cannot be told apart at these params and tokens"
        return
    sigma = np.median(np.abs(r)) / 0.6745
    errors = sigma * np.sqrt(np.pi / 2 * np.diag(np.linalg.inv(square)))
    _, sx, _, sy = problem.scales
    for name, value, error in (
        ("alpha", theta[3], errors[3] / sx),
        ("beta", theta[4], errors[4] / sy),
    ):
        if error > 0.5 * abs(value):
            yield f"{name} = {value:.3g} has a standard error of about {error:.2g}"

"""Exercise of week 2: name the flaw of a given fit. Each fit made here has at most one flaw."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from helpers.check import hidden
from helpers.check.exercise import Case, Exercise
from helpers.check.verdict import NotRight
from helpers.check.week02.laws import DELTA, THETA, huber, predicted

FLAWS = ("schedule", "embedding", "sizes", "stopped early")
NONE = "none"
WIDTHS = (256, 384, 512, 768, 1024, 1536, 2048)
TOKENS = tuple(int(t) for t in 1e9 * 2.0 ** np.arange(8))
START = (5.0, 5.0, 0.5, 0.5, 0.5)  # a start from the paper's grid


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenFit:
    """A fit as a paper would publish it: its runs and its result.

    Attributes:
        params, tokens, loss: (n,) N, D at the reading of the loss, L in nats per token.
        scheduled: (n,) tokens at the end of the learning rate's schedule.
        flops: (n,) 6 for each of the D tokens and each parameter, embedding included.
        theta: (a, b, e, alpha, beta), with a = log A, b = log B, e = log E.
    """

    params: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    scheduled: np.ndarray
    flops: np.ndarray
    theta: tuple[float, ...] = THETA

    def objective(self, theta) -> float:
        """Return the summed Huber objective of these runs, with delta 1e-3."""
        residuals = predicted(theta, self.params, self.tokens) - np.log(self.loss)
        return float(huber(residuals, DELTA).sum())


@cache
def given_fit(
    flaw: str = NONE,
    *,
    seed: int = 0,
    noise: float = 0.003,
    vocab: int = 32_000,
    widths: tuple[int, ...] = WIDTHS,
    token_counts: tuple[int, ...] = TOKENS,
    cut: tuple[float, ...] = (0.25, 0.5, 0.75),
) -> GivenFit:
    """Make runs by Chinchilla's law, and a fit to them with one flaw.

    Args:
        flaw: one of FLAWS, or "none". For "sizes", pass two widths or token_counts.
        noise: standard deviation of log L.
        vocab: rows of the embedding.
        widths, token_counts: each width runs on three or more of the counts.
        cut: for "schedule": the parts of their schedules that the first runs have done.
    """
    rng = np.random.default_rng(seed)
    a_width = max(3, -(-24 // len(widths)))
    drawn = [rng.permutation(token_counts)[:a_width] for _ in widths]
    width = np.repeat(np.array(widths, dtype=np.float64), [len(d) for d in drawn])
    tokens = np.concatenate(drawn).astype(np.float64)
    blocks = 12 * width**2 * width / 64  # matrices of width / 64 layers
    params = blocks + vocab * width
    log_loss = predicted(THETA, params, tokens) + noise * rng.normal(size=len(width))
    scheduled = np.round(tokens * (1 + 0.005 * rng.random(len(width))))  # whole steps
    if flaw == "schedule":
        done = np.array(cut)
        scheduled[: len(cut)] = tokens[: len(cut)] / done
        log_loss[: len(cut)] += 0.03 * (1 - done)
    runs = {
        "params": blocks if flaw == "embedding" else params,
        "tokens": tokens,
        "loss": np.exp(log_loss),
        "scheduled": scheduled,
        "flops": 6 * params * tokens * (1 + 0.0004 * rng.uniform(-1, 1, len(width))),
    }
    fit = GivenFit(**runs)
    return GivenFit(**runs, theta=averaged(fit) if flaw == "stopped early" else minimum(fit))


def minimum(fit: GivenFit) -> tuple[float, ...]:
    """Return a minimum of the objective, searched from the law that made the runs.

    The search varies the heights of the power laws at the centre of the runs, because the slopes do
    not change those heights.
    """
    from scipy.optimize import minimize  # slow to import, and not needed elsewhere here

    x, y = np.log(fit.params).mean(), np.log(fit.tokens).mean()

    def theta(z):
        return (z[0] + z[3] * x, z[1] + z[4] * y, z[2], z[3], z[4])

    a, b, e, alpha, beta = THETA
    z = np.array([a - alpha * x, b - beta * y, e, alpha, beta])
    exact = {"xatol": 1e-7, "fatol": 1e-13, "maxiter": 4000}
    for _ in range(3):  # start again with a fresh simplex, because a simplex shrinks
        z = minimize(lambda z: fit.objective(theta(z)), z, method="Nelder-Mead", options=exact).x
    return tuple(float(number) for number in theta(z))


def averaged(fit: GivenFit) -> tuple[float, ...]:
    """Return the end of L-BFGS on the *mean* of the Huber terms: it stops far too early.

    Its usual tolerance is too large for a mean. The paper's own fit made this mistake (Besiroglu
    et al. 2024, arXiv:2404.10102).
    """
    from scipy.optimize import minimize

    found = minimize(lambda t: fit.objective(t) / len(fit.loss), START, method="L-BFGS-B")
    return tuple(float(number) for number in found.x)


FITS = (  # first an obvious case of each flaw, then a hidden one
    (NONE, {"seed": 1}),
    ("schedule", {"seed": 2}),
    ("embedding", {"seed": 3}),
    ("sizes", {"seed": 4, "widths": (512, 1024), "token_counts": TOKENS}),
    ("stopped early", {"seed": 5}),
    (NONE, {"seed": 6, "noise": 0.03}),
    ("schedule", {"seed": 7, "cut": (1, 1, 1, 0.97)}),
    ("embedding", {"seed": 8, "vocab": 256}),
    ("sizes", {"seed": 9, "token_counts": TOKENS[2:4]}),
    ("stopped early", {"seed": 10, "noise": 0.0005, "widths": WIDTHS[2:5]}),
    (NONE, {"seed": 11, "widths": WIDTHS[2:5]}),
)


FALSE_ALARMS = {
    "schedule": "Steps are whole, so most runs miss their schedule by some tokens. How many?",
    "embedding": "FLOPs are noted within 0.1 %. How far off are they in this fit?",
    "sizes": "How many different N, and how many different D, are there? How many are enough?",
    "stopped early": (
        "The size of the objective shows how noisy the runs are. What shows whether theta is a "
        "minimum?"
    ),
}
MISSED = {
    "schedule": "Compare the tokens at each loss with the end of that run's schedule: every run.",
    "embedding": (
        "From the FLOPs and the tokens, how many parameters were at work? Check every run: the "
        "embedding is a small part of a large model."
    ),
    "sizes": "Count the different values of N, and of D: a power law is fitted to each of the two.",
    "stopped early": (
        "The runs are sound, so check theta. Start a search of your own at theta: does it reach a "
        "clearly smaller objective? A search by gradients may stop where the first search did: "
        "try Nelder-Mead, from a few points near theta."
    ),
}


@dataclass(frozen=True)
class Flawed(Case):
    flaw: str


class Study(Exercise):
    """Name the flaw of each fit. The flaw is known from how the fit was made."""

    def asked(self):
        cases = []
        for number, (flaw, changes) in enumerate(FITS, 1):
            fit = given_fit(flaw, **{**changes, "seed": hidden.seed(changes["seed"])})
            cases.append(Flawed(f"fit {number}, to {len(fit.loss)} runs", (fit,), flaw))
        return cases

    def expected(self, case):
        return {"returned": case.flaw}

    def complaint(self, facet, found, flaw, case):
        names = (*FLAWS, NONE)
        if not isinstance(found, str) or found not in names:
            hint = f"Return one of {', '.join(map(repr, names))}."
            return NotRight(f"returned {found!r}", hint)
        wrong = "this fit has no flaw" if flaw == NONE else f"its flaw is {flaw!r}"
        if flaw == NONE:
            hint = FALSE_ALARMS[found]
        elif flaw != "stopped early" and found == "stopped early":
            hint = "Look at the runs before theta. " + MISSED[flaw]
        else:
            hint = " ".join(filter(None, (FALSE_ALARMS.get(found), MISSED[flaw])))
        return NotRight(f"you returned {found!r}; {wrong}", hint)


find_flaw = Study(name="find_flaw", right=given_fit, cases=())

"""Plan a training run: for a budget, for a demand of inference, or for data that repeat."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from helpers.scaling.law import FLOPS, ChinchillaLaw, plain, positive

DAY = 86_400  # seconds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training run: parameters, tokens, FLOPs, predicted loss in nats a token, days, dollars."""

    params: float
    tokens: float
    compute: float
    loss: float
    days: float
    dollars: float


def plan(
    law: ChinchillaLaw,
    compute: float,
    *,
    gpus: int,
    peak: float,
    mfu: float,
    price: float,
    params: float | None = None,
) -> Plan:
    """Plan the best run for `compute` FLOPs, or the run of `params` parameters.

    Args:
        peak: the peak FLOP/s of a GPU.
        mfu: model FLOPs utilisation: the fraction of the peak that the training reaches, in (0, 1].
        price: dollars per GPU and hour.

    Raises:
        ValueError: a number that is not positive, or mfu above 1.
    """
    for name, value in {"gpus": gpus, "peak": peak, "mfu": mfu, "price": price}.items():
        positive(name, value)
    if mfu > 1:
        raise ValueError(f"mfu is a fraction of the peak, at most 1, not {mfu!r}")
    if params is None:
        params, tokens = law.optimal(compute)
    else:
        tokens = float(positive("compute", compute) / (FLOPS * positive("params", params)))
    seconds = compute / (gpus * peak * mfu)
    return Plan(
        params=params,
        tokens=tokens,
        compute=compute,
        loss=law.loss(params, tokens),
        days=seconds / DAY,
        dollars=seconds / 3600 * gpus * price,
    )


def with_inference(law: ChinchillaLaw, loss: float, inference_tokens: float):
    """Return (params, tokens) that reach `loss` with the fewest FLOPs of training plus inference.

    Minimises 6 N D + 2 N D_inf subject to L(N, D) = loss. With more inference the best model is
    smaller and trains longer. Sardana et al. 2024, arXiv:2401.00448.

    Raises:
        ValueError: a loss at or below E, or a demand below 0.
    """
    if not (np.isfinite(loss) and loss > law.E):
        raise ValueError(f"no model reaches a loss of {loss!r}: it must be above E, {law.E!r}")
    if not (np.isfinite(inference_tokens) and inference_tokens >= 0):
        raise ValueError(f"inference_tokens must be 0 or more, not {inference_tokens!r}")
    # Along L = loss, s is the share of the excess that comes from the size of the model.
    excess = loss - law.E

    def pair(s):
        params = (law.A / (s * excess)) ** (1 / law.alpha)
        return params, (law.B / ((1 - s) * excess)) ** (1 / law.beta)

    def slope(t):
        """d/ds of log(cost) times s (1 - s), at s = 1/(1 + e^-t): negative, then positive."""
        s = 1 / (1 + np.exp(-t))
        _, tokens = pair(s)
        trained = FLOPS * tokens / (FLOPS * tokens + 2 * inference_tokens)
        return -(1 - s) / law.alpha + trained * s / law.beta

    t = brentq(slope, -30, 30, xtol=1e-13)
    return pair(1 / (1 + np.exp(-t)))


# Muennighoff et al. 2023, arXiv:2305.16264, appendix A; alpha = beta there.
MUENNIGHOFF = ChinchillaLaw(
    E=float(np.exp(0.6254804)),
    A=float(np.exp(6.255414)),
    B=float(np.exp(7.3049974)),
    alpha=0.3526596,
    beta=0.3526596,
)
R_D = 15.387756  # how soon repeated tokens stop counting
R_N = 5.309743  # the same for parameters beyond the best number for the unique tokens


def effective(unique, total, constant: float = R_D):
    """Return how many new tokens are worth as much as `total` tokens that repeat `unique` ones.

    The formula is U + U R* (1 - exp(-R/R*)) with R = total/unique - 1 repetitions: Muennighoff et
    al. 2023, arXiv:2305.16264, equation 5. The result never exceeds U (1 + R*). Tokens that do not
    repeat count in full.
    """
    unique, total = positive("unique", unique), positive("total", total)
    repeats = np.maximum(total / unique - 1, 0)
    seen = np.minimum(unique, total)
    return plain(seen + unique * constant * -np.expm1(-repeats / constant))


def repeated_loss(params, tokens, unique, *, law: ChinchillaLaw = MUENNIGHOFF):
    """Return the loss when `tokens` repeat `unique` tokens, from effective data and parameters.

    Parameters beyond the best number for the unique tokens also count for less: equation 6.
    """
    best = best_params(law, unique)
    params = positive("params", params)
    return law.loss(effective(best, params, R_N), effective(unique, tokens, R_D))


def best_params(law: ChinchillaLaw, tokens):
    """Return the N for which `tokens` is the compute-optimal number of tokens."""
    _, b = law.exponents
    return law.optimal(FLOPS * (law.G * positive("tokens", tokens)) ** (1 / b))[0]


def best_epochs(compute: float, unique: float, *, law: ChinchillaLaw = MUENNIGHOFF):
    """Return (params, tokens) of the lowest loss for `compute` FLOPs and only `unique` tokens."""
    positive("compute", compute)
    middle = np.log(law.optimal(compute)[0])

    def loss(log_params):
        params = np.exp(log_params)
        return repeated_loss(params, compute / (FLOPS * params), unique, law=law)

    grid = middle + np.linspace(-8, 4, 241)
    near = grid[int(np.argmin([loss(x) for x in grid]))]
    span = (near - 0.1, near + 0.1)
    found = minimize_scalar(loss, bounds=span, method="bounded", options={"xatol": 1e-10})
    params = float(np.exp(found.x))
    return params, compute / (FLOPS * params)

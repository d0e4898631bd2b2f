"""Plan a training run: for a budget, or for a demand of inference."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from helpers.scaling.law import FLOPS, ChinchillaLaw, positive

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

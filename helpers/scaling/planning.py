"""Plan a training run, for a budget or for a demand of inference; what published models chose."""

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


@dataclass(frozen=True, kw_only=True)
class Published:
    """A model's parameters, its training tokens, and the source of both."""

    name: str
    params: float
    tokens: float
    source: str

    @property
    def compute(self) -> float:
        """6 N D, in FLOPs."""
        return FLOPS * self.params * self.tokens

    @property
    def tokens_per_param(self) -> float:
        return self.tokens / self.params


_GPT3 = "Brown et al. 2020, arXiv:2005.14165, table 2.1"
_GOPHER = "Rae et al. 2021, arXiv:2112.11446, section 3"
_CHINCHILLA = "Hoffmann et al. 2022, arXiv:2203.15556, section 4"
_LLAMA1 = "Touvron et al. 2023, arXiv:2302.13971, table 2"
_LLAMA2 = "Touvron et al. 2023, arXiv:2307.09288, table 1"
_LLAMA3 = "Grattafiori et al. 2024, arXiv:2407.21783, sections 1 and 3"

MODELS = tuple(
    Published(name=name, params=params, tokens=tokens, source=source)
    for name, params, tokens, source in (
        ("GPT-3", 175e9, 300e9, _GPT3),
        ("Gopher", 280e9, 300e9, _GOPHER),
        ("Chinchilla", 70e9, 1.4e12, _CHINCHILLA),
        ("Llama 1 7B", 6.7e9, 1e12, _LLAMA1),
        ("Llama 1 65B", 65.2e9, 1.4e12, _LLAMA1),
        ("Llama 2 7B", 7e9, 2e12, _LLAMA2),
        ("Llama 2 70B", 70e9, 2e12, _LLAMA2),
        ("Llama 3 405B", 405e9, 15.6e12, _LLAMA3),
    )
)

"""Chinchilla's law: the loss of N parameters trained on D tokens, and the best pair for a budget.

    L(N, D) = E + A / N^alpha + B / D^beta            C = 6 N D

Hoffmann et al. 2022, arXiv:2203.15556, equations 2 and 4. Loss in nats a token, C in FLOPs.
"""

from dataclasses import dataclass

import numpy as np

FLOPS = 6  # for each parameter and token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1)


@dataclass(frozen=True, kw_only=True)
class ChinchillaLaw:
    """The five numbers. All methods take numbers or arrays and give the like.

    Attributes:
        E: nats a token, of a model without limits: the entropy of the text.
        A, alpha: what a finite model adds.
        B, beta: what finite data add.

    Raises:
        ValueError: a number that is not finite, an exponent or factor that is not positive,
            or E below 0.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def __post_init__(self):
        for name in ("E", "A", "B", "alpha", "beta"):
            value = getattr(self, name)
            low = value >= 0 if name == "E" else value > 0
            if not (np.isfinite(value) and low):
                raise ValueError(f"{name} must be positive and finite, not {value!r}")

    @property
    def exponents(self) -> tuple[float, float]:
        """(a, b) of N_opt ~ C^a and D_opt ~ C^b: a = beta/(alpha+beta), b = 1 - a."""
        total = self.alpha + self.beta
        return self.beta / total, self.alpha / total

    @property
    def G(self) -> float:
        """(alpha A / (beta B))^(1/(alpha+beta)), of equation 4."""
        ratio = np.log(self.alpha * self.A) - np.log(self.beta * self.B)
        return float(np.exp(ratio / (self.alpha + self.beta)))

    def loss(self, params, tokens):
        """L(N, D) in nats a token.

        Raises:
            ValueError: params or tokens that are not positive.
        """
        params, tokens = positive("params", params), positive("tokens", tokens)
        return plain(self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta)

    def optimal(self, compute):
        """(params, tokens) of the lowest loss for `compute` FLOPs: equation 4."""
        a, b = self.exponents
        pairs = positive("compute", compute) / FLOPS
        return plain(self.G * pairs**a), plain(pairs**b / self.G)

    def compute_for(self, params):
        """FLOPs for which a model of `params` parameters is the best: `optimal`, turned round."""
        a, _ = self.exponents
        return plain(FLOPS * (positive("params", params) / self.G) ** (1 / a))


def positive(name: str, values) -> np.ndarray:
    """As float64, or a ValueError naming what is not positive and finite."""
    array = np.asarray(values, dtype=np.float64)
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        raise ValueError(f"{name} must be positive and finite, not {array[wrong].flat[0]:g}")
    return array


def plain(array):
    """A float for a single number."""
    return float(array) if np.ndim(array) == 0 else array


# Section 3.3 and appendix D.3, as printed: rounded.
HOFFMANN = ChinchillaLaw(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
# The same before rounding, from the paper's LaTeX source (quoted by Besiroglu et al. 2024).
HOFFMANN_UNROUNDED = ChinchillaLaw(
    E=float(np.exp(0.5267228)),
    A=float(np.exp(6.0073404)),
    B=float(np.exp(6.0179186)),
    alpha=0.33917084,
    beta=0.2849083,
)
# Besiroglu et al. 2024, arXiv:2404.10102: fitted again, on 240 points read off the paper's figure.
BESIROGLU = ChinchillaLaw(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)

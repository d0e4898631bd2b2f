"""Chinchilla's law: the loss of N parameters trained on D tokens, and the best pair for a budget.

    L(N, D) = E + A / N^alpha + B / D^beta            C = 6 N D

Hoffmann et al. 2022, arXiv:2203.15556, equations 2 and 4. Loss in nats a token, C in FLOPs.
"""

from dataclasses import dataclass

import numpy as np

FLOPS = 6  # per parameter and token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1)


@dataclass(frozen=True, kw_only=True)
class ChinchillaLaw:
    """The five numbers. Each method takes numbers or arrays, and returns the same kind.

    Attributes:
        E: nats a token that even a perfect model loses: the entropy of the text.
        A, alpha: of the term for the finite model.
        B, beta: of the term for the finite data.

    Raises:
        ValueError: a number that is not finite, an exponent or factor that is not positive, or E
            below 0.
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
        """(alpha A / (beta B))^(1/(alpha+beta)), from equation 4."""
        ratio = np.log(self.alpha * self.A) - np.log(self.beta * self.B)
        return float(np.exp(ratio / (self.alpha + self.beta)))

    def loss(self, params, tokens):
        """Return L(N, D) in nats a token.

        Raises:
            ValueError: params or tokens that are not positive.
        """
        params, tokens = positive("params", params), positive("tokens", tokens)
        return plain(self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta)

    def optimal(self, compute):
        """Return (params, tokens) of the lowest loss for `compute` FLOPs: equation 4."""
        a, b = self.exponents
        pairs = positive("compute", compute) / FLOPS
        return plain(self.G * pairs**a), plain(pairs**b / self.G)

    def compute_for(self, params):
        """Return the FLOPs for which `params` is the best size: the inverse of `optimal`."""
        a, _ = self.exponents
        return plain(FLOPS * (positive("params", params) / self.G) ** (1 / a))


def positive(name: str, values) -> np.ndarray:
    """Return the values as float64. A value that is not positive and finite is a ValueError."""
    array = np.asarray(values, dtype=np.float64)
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        raise ValueError(f"{name} must be positive and finite, not {array[wrong].flat[0]:g}")
    return array


def plain(array):
    """Return a float for a single number, and an array as it is."""
    return float(array) if np.ndim(array) == 0 else array


# Section 3.3 and appendix D.3: the rounded values that the paper prints.
HOFFMANN = ChinchillaLaw(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
# The values before rounding, from the paper's LaTeX source (quoted by Besiroglu et al. 2024).
HOFFMANN_UNROUNDED = ChinchillaLaw(
    E=float(np.exp(0.5267228)),
    A=float(np.exp(6.0073404)),
    B=float(np.exp(6.0179186)),
    alpha=0.33917084,
    beta=0.2849083,
)
# Besiroglu et al. 2024, arXiv:2404.10102: a new fit to 240 points from the paper's figure.
BESIROGLU = ChinchillaLaw(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)


def observations(**columns) -> list[np.ndarray]:
    """Return the columns as float64 arrays of one length.

    Raises:
        ValueError: no rows, columns of different lengths or with more than one dim, or a value that
            is not positive and finite. The message names the first wrong row (from 0) and its
            column.
    """
    arrays = [np.asarray(values, dtype=np.float64) for values in columns.values()]
    shapes = {name: array.shape for name, array in zip(columns, arrays, strict=True)}
    if len(set(shapes.values())) != 1 or arrays[0].ndim != 1 or not len(arrays[0]):
        listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"the columns must be lists, equally long and not empty: {listing}")
    bad = [~(np.isfinite(array) & (array > 0)) for array in arrays]
    rows = np.flatnonzero(np.any(bad, axis=0))
    if len(rows):
        row = rows[0]
        name, array = next((n, a) for n, a, b in zip(columns, arrays, bad, strict=True) if b[row])
        more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
        raise ValueError(
            f"row {row}: {name} is {array[row]:g}; it must be positive and finite{more}"
        )
    return arrays


def distinct(values: np.ndarray) -> int:
    """Count the values that differ by more than about 2 %."""
    logs = np.sort(np.log(values))
    count, last = 1, logs[0]
    for value in logs:
        if value > last + 0.02:
            count, last = count + 1, value
    return count

"""What counts as a parameter and as compute, and how that alone bends a scaling law's exponent.

Kaplan et al. 2020 (arXiv:2001.08361) leave the embeddings out of N, and so out of C = 6 N D;
Hoffmann et al. 2022 (arXiv:2203.15556) count them. For small models the embeddings are most of all
parameters. That this explains most of 0.73 against 0.50 was found by Pearce and Song 2024,
arXiv:2406.12907.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from helpers.models.config import GPTConfig
from helpers.models.counts import flops_per_token, parameters
from helpers.scaling.law import FLOPS, ChinchillaLaw, plain, positive


@dataclass(frozen=True, kw_only=True)
class Counts:
    """One model, counted as each paper does. FLOPs are of training, for a token.

    Attributes:
        total, non_embedding: parameters; Hoffmann's N and Kaplan's.
        six_total, six_non_embedding: 6 N of each.
        exact: every matrix product of the model.
        chinchilla: Hoffmann et al.'s appendix F, embedding and softmax included.
    """

    total: int
    non_embedding: int
    six_total: int
    six_non_embedding: int
    exact: int
    chinchilla: int


def counts(config: GPTConfig, tokens: int | None = None) -> Counts:
    """Parameters, and training FLOPs for one token of a sequence of `tokens` (None: context)."""
    found = parameters(config)
    return Counts(
        total=found.total,
        non_embedding=found.non_embedding,
        six_total=FLOPS * found.total,
        six_non_embedding=FLOPS * found.non_embedding,
        exact=flops_per_token(config, tokens),
        chinchilla=flops_per_token(config, tokens, "chinchilla"),
    )


@dataclass(frozen=True, kw_only=True)
class Family:
    """GPTs of one shape, from small to large: layers = width / aspect, so N = 12 width^3 / aspect.

    Attributes:
        vocab, context: the rows of the embeddings, which add (vocab + context) width parameters.
        aspect: width for each layer.
    """

    vocab: int = 50_257
    context: int = 1024
    aspect: float = 64.0

    def total(self, non_embedding):
        """Parameters with embeddings, of a model with `non_embedding` without."""
        inner = positive("non_embedding", non_embedding)
        width = (inner * self.aspect / 12) ** (1 / 3)
        return plain(inner + (self.vocab + self.context) * width)

    def non_embedding(self, total):
        """Turned round."""
        positive("total", total)
        log = brentq(
            lambda x: np.log(self.total(np.exp(x)) / total), -30, np.log(total), xtol=1e-13
        )
        return float(np.exp(log))


def bent_exponent(law: ChinchillaLaw, family: Family, small: float, large: float) -> float:
    """The exponent that who leaves the embeddings out would find, in a world that obeys `law`.

    N_opt without embeddings is fitted as a power of C = 6 N D, N without embeddings, where N_opt
    goes from about `small` to `large` parameters. Compare `law.exponents[0]`.

    Raises:
        ValueError: sizes not positive, or not small < large.
    """
    positive("small", small)
    if not small < large:
        raise ValueError(f"small must be below large, not {small!r} and {large!r}")
    ends = [FLOPS * n * law.optimal(law.compute_for(family.total(n)))[1] for n in (small, large)]
    compute = np.geomspace(*ends, 25)
    best = [kaplan_optimal(law, family, c) for c in compute]
    return float(np.polyfit(np.log(compute), np.log(best), 1)[0])


def kaplan_optimal(law: ChinchillaLaw, family: Family, compute: float) -> float:
    """N without embeddings of the lowest loss at C = 6 N D counted without embeddings."""
    positive("compute", compute)

    def loss(x):
        inner = np.exp(x)
        return law.loss(family.total(inner), compute / (FLOPS * inner))

    grid = np.linspace(np.log(1e2), np.log(compute / FLOPS), 400)
    near = int(np.argmin([loss(x) for x in grid]))
    span = (grid[max(near - 1, 0)], grid[min(near + 1, len(grid) - 1)])
    found = minimize_scalar(loss, bounds=span, method="bounded", options={"xatol": 1e-10})
    return float(np.exp(found.x))

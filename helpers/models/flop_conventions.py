"""The FLOPs of a forward per token, as three papers count them. See `counts.flops_per_token`.

Letters as in gpt.py and attention.py: T, V, D, H.
"""

from collections.abc import Callable

from helpers.models.config import GPTConfig
from helpers.models.parameter_counts import parameters


def forward_flops(
    config: GPTConfig, length: int, convention: str, attention: bool, embedding: bool
) -> int:
    """Count by a paper's convention: 2 N, and on request the attention and the embedding.

    Args:
        length: T.
        convention: a key of FORWARD.

    Raises:
        ValueError: `attention` is on, but a block has another mixer, which no paper counts.
    """
    if attention and set(config.mixers) != {"attention"}:
        raise ValueError(
            f"convention {convention!r} counts scores of mixer 'attention' only, not of "
            f"{config.mixer!r}; use convention 'exact', or attention=False"
        )
    return FORWARD[convention](config, length, attention, embedding)


def kaplan(config: GPTConfig, length: int, attention: bool, embedding: bool) -> int:
    """Kaplan et al. 2020 (arXiv:2001.08361, table 1): half of the scores and values, no norms."""
    flops = 2 * parameters(config).non_embedding + attention * 2 * scores(config, length)
    return flops + embedding * (4 * config.width + 2 * table(config))


def palm(config: GPTConfig, length: int, attention: bool, embedding: bool) -> int:
    """Chowdhery et al. 2022 (arXiv:2204.02311, appendix B): every parameter is one of a matrix."""
    count = parameters(config)
    return 2 * (count.total if embedding else count.blocks) + attention * 4 * scores(config, length)


def chinchilla(config: GPTConfig, length: int, attention: bool, embedding: bool) -> int:
    """Hoffmann et al. 2022 (arXiv:2203.15556, appendix F): the softmax too, and two embeddings."""
    softmax = 3 * config.layers * config.heads * length
    flops = 2 * parameters(config).non_embedding
    return (
        flops + attention * (4 * scores(config, length) + softmax) + embedding * 4 * table(config)
    )


def scores(config: GPTConfig, length: int) -> int:
    """The multiply-adds per token of all layers' scores, which are as many as those of values."""
    return config.layers * config.width * length


def table(config: GPTConfig) -> int:
    """V D: the numbers of the embedding's matrix, or of the head's."""
    return config.vocab * config.width


FORWARD: dict[str, Callable[[GPTConfig, int, bool, bool], int]] = {
    "kaplan": kaplan,
    "palm": palm,
    "chinchilla": chinchilla,
}

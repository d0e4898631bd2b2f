"""Let a model read the next tokens of several sequences, each with a piece of its own length.

B  sequences        T  tokens of the longest piece        V  different tokens
"""

from collections.abc import Sequence
from contextlib import contextmanager

import torch

from helpers.models.caches.cache import Cache
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT


@torch.no_grad()
def read(model: GPT, cache: Cache, pieces: Sequence[Sequence[int]]) -> torch.Tensor:
    """Read one piece for each sequence of the cache. Return the logits, (B, T, V).

    The logits after the last token of piece b are at [b, len(piece) - 1]. Later ones mean nothing.

    Args:
        pieces: B; a piece may be empty, and is padded on the right. Dropout is off.

    Raises:
        CacheFull: there is no room. The cache is as before.
    """
    counts = [len(piece) for piece in pieces]
    longest = max(counts)
    padded = [[*piece, *[0] * (longest - len(piece))] for piece in pieces]
    even = all(count == longest for count in counts)
    with evaluating(model):
        x = torch.tensor(padded, device=device_of(model))
        return model(x, cache=cache, counts=None if even else counts)


def check_prompt(prompt: Sequence[int], config: GPTConfig) -> str:
    """Say why a model cannot read this prompt; "" if it can."""
    if not prompt:
        return "the prompt is empty: give one token at least, for example a document's separator"
    if len(prompt) > config.context:
        return (
            f"the prompt has {len(prompt)} tokens, but the context allows {config.context}: "
            "shorten it"
        )
    for place, token in enumerate(prompt):
        if not 0 <= token < config.vocab:
            return (
                f"token {token} at place {place} of the prompt does not exist: the model's tokens "
                f"are 0 to {config.vocab - 1}"
            )
    return ""


def one_each(values, kind, many: int, name: str) -> list:
    """Make one value for each prompt, from one for all (of this kind) or a list of them.

    Raises:
        ValueError: the list has another length.
    """
    values = [values] * many if isinstance(values, kind) else list(values)
    if len(values) != many:
        raise ValueError(f"{many} prompts, but {len(values)} {name}: give one for each")
    return values


def device_of(model: GPT) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def evaluating(model: GPT):
    """Switch dropout off for a while."""
    before = model.training
    if before:
        model.eval()
    try:
        yield
    finally:
        if before:
            model.train()

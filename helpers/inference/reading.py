"""Prompts that a model continues together: read pieces of any lengths, and know when each ends.

B  sequences        T  tokens of the longest piece        V  different tokens
"""

import operator
import reprlib
from collections.abc import Iterable, Sequence
from contextlib import contextmanager

import torch

from helpers.inference.sampling import Sampling
from helpers.models.caches.cache import Cache
from helpers.models.caches.preallocated import Preallocated
from helpers.models.gpt import GPT, GPTConfig, kept_by

GREEDY = Sampling()


class Requests:
    """Prompts and the tokens after them.

    Args:
        model: which says what a prompt may be, and how long a sequence.
        prompts, new_tokens, sampling, stop, seeds: as of `generate.generate`.

    Attributes:
        tokens: the new tokens of each request.
        reasons: why each request ended; "" while it runs.

    Raises:
        ValueError: an argument is out of its range, or a list does not have one value per prompt.
        TypeError: as `tokens_of`.
    """

    def __init__(self, model: GPT, prompts, new_tokens, sampling, stop, seeds):
        self.model, self.config, self.stop = model, model.config, frozenset(stop)
        if not isinstance(prompts, Iterable):
            raise TypeError(f"prompts is a list of prompts, not {prompts!r}")
        self.prompts = [tokens_of(prompt) for prompt in prompts]
        many = len(self.prompts)
        self.most = one_each(new_tokens, int | float, many, "new_tokens")
        self.samplings = one_each(sampling, Sampling, many, "samplings")
        self.seeds = list(range(many)) if seeds is None else one_each(seeds, (), many, "seeds")
        if any(not isinstance(most, int) or most < 0 for most in self.most):
            raise ValueError(f"new_tokens must not be negative, and whole: {new_tokens!r}")
        self.tokens: list[list[int]] = [[] for _ in self.prompts]
        self.reasons = [""] * many
        for number, prompt in enumerate(self.prompts):
            if wrong := check_prompt(prompt, self.config):
                self.end(number, f"error: {wrong}")
            elif not self.most[number]:
                self.end(number, "length")

    @property
    def running(self) -> list[int]:
        """The numbers of the requests that have not ended."""
        return [number for number, reason in enumerate(self.reasons) if not reason]

    def sequence(self, number: int) -> list[int]:
        return self.prompts[number] + self.tokens[number]

    def end(self, number: int, reason: str):
        """End a request. Its row stays in the batch, without new tokens."""
        self.reasons[number] = self.reasons[number] or reason

    def add(self, number: int, token: int):
        """Append a new token, and end the request if it is the last."""
        self.tokens[number].append(token)
        if token in self.stop:
            self.end(number, "stop")
        elif len(self.tokens[number]) == self.most[number]:
            self.end(number, "length")
        elif len(self.sequence(number)) > self.config.context:
            self.end(number, "context")

    def make_cache(self, model: GPT) -> Preallocated:
        """Make a cache with a slot for each token that may be read. The last one is not read."""
        lengths = (len(self.prompts[n]) + self.most[n] - 1 for n in self.running)
        capacity = min(max(lengths, default=0), model.config.context)
        first = next(model.parameters())
        return Preallocated(kept_by(model), len(self.prompts), capacity, first.dtype, first.device)


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


def tokens_of(prompt: Iterable[int]) -> list[int]:
    """Make a list of a prompt's tokens.

    Raises:
        TypeError: it has none, or a token is no whole number.
    """
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        hint = ": encode a text first" if isinstance(prompt, str) else ""
        hint = (
            hint if isinstance(prompt, Iterable) else ": several prompts are a list of such lists"
        )
        raise TypeError(
            "a prompt is a list of tokens, whole numbers such as [72, 105], not "
            f"{reprlib.repr(prompt)}{hint}"
        ) from None


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

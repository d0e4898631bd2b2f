"""Generate tokens for several prompts at once; or for one prompt, as a stream.

B  prompts        T  new tokens per sequence in one forward, the longest        V  different tokens
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from helpers.inference.reading import GREEDY, Requests, check_prompt, read, tokens_of
from helpers.inference.sampling import NotANumber, Sampling, are_numbers, choose
from helpers.models.caches.cache import Cache, CacheFull
from helpers.models.gpt import GPT


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The result for one prompt.

    Attributes:
        prompt: its tokens.
        tokens: the new tokens. A stop token is the last of them.
        reason: why they end: "stop", a stop token; "length", there are as many as asked for;
            "context", prompt and tokens fill the context, and the token after it; or "error: …".
            After an error, `tokens` has those of before.
        margin: the smallest gap between the two largest logits, over all tokens; ∞ without tokens.
            If it is as small as rounding, another order of sums may choose another token.
    """

    prompt: list[int]
    tokens: list[int]
    reason: str
    margin: float


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    new_tokens: int | Sequence[int],
    *,
    sampling: Sampling | Sequence[Sampling] = GREEDY,
    stop: Sequence[int] = (),
    seeds: Sequence[int] | None = None,
    cache: Cache | None = None,
    chunk: int | None = None,
) -> list[Generated]:
    """Generate tokens for each prompt. Nothing that happens to one request changes another.

    Args:
        prompts: the tokens of each prompt; the lengths may differ.
        new_tokens: how many tokens to generate at most; one number for all, or one for each.
        sampling: how to choose tokens, for all prompts or for each.
        stop: tokens that end a request.
        seeds: of each prompt's random numbers; None: 0, 1, …
        cache: for B sequences. It may have the first tokens of each prompt already. None: a
            preallocated one of exactly the size that is needed.
        chunk: read at most this many tokens of a prompt at once; None: all.

    Raises:
        ValueError: an argument is out of its range, or a list does not have one value per prompt.
            A prompt that cannot be read is no reason to raise: its result says so.
        TypeError: a token is no whole number.
    """
    batch = Batch(model, prompts, new_tokens, sampling, stop, seeds, cache, chunk)
    while batch.running:
        batch.step()
    return batch.results()


def stream(
    model: GPT, prompt: Sequence[int], new_tokens: int, *, seed: int = 0, **options
) -> Iterator[int]:
    """Yield the tokens for one prompt as they come. Stop asking for more to end the request.

    Args:
        options: as of `generate`: sampling, stop, cache, chunk.

    Raises:
        ValueError: as for `generate`; or the model cannot read the prompt.
        RuntimeError: the request ended with an error after some tokens; the message says why.
    """
    prompt = tokens_of(prompt)
    if wrong := check_prompt(prompt, model.config):
        raise ValueError(wrong)
    options = {"sampling": GREEDY, "stop": (), "cache": None, "chunk": None} | options
    return _tokens(Batch(model, [prompt], new_tokens, seeds=[seed], **options))


def _tokens(batch: "Batch") -> Iterator[int]:
    while batch.running:
        yield from (token for _, token in batch.step())
    kind, _, why = batch.reasons[0].partition(": ")
    if kind == "error":
        raise RuntimeError(why)


class Batch(Requests):
    """Requests that are generated together. Each step reads what is new, and chooses tokens."""

    def __init__(self, model, prompts, new_tokens, sampling, stop, seeds, cache, chunk):
        super().__init__(model, prompts, new_tokens, sampling, stop, seeds)
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, or None, not {chunk!r}")
        self.chunk = chunk or self.config.context
        self.margins = [math.inf] * len(self.prompts)
        self.cache = self.make_cache(model) if cache is None else cache
        self.check_cache()

    def check_cache(self):
        if len(self.cache.lengths) != len(self.prompts):
            raise ValueError(
                f"{len(self.prompts)} prompts, but the cache is of {len(self.cache.lengths)} "
                "sequences"
            )
        for number in self.running:
            has, prompt = self.cache.lengths[number], self.prompts[number]
            if has >= len(prompt):
                raise ValueError(
                    f"the cache has {has} tokens of prompt {number}, which has {len(prompt)}: at "
                    "least the last one must be left to read"
                )

    def step(self) -> list[tuple[int, int]]:
        """Read the next tokens of each request; return the new tokens: (number, token)."""
        while self.running:
            pieces = self.pieces()
            try:
                logits = read(self.model, self.cache, pieces)  # (B, T, V)
            except CacheFull as full:
                longest = max(self.running, key=lambda n: self.cache.lengths[n] + len(pieces[n]))
                self.end(longest, f"error: {full}")
            else:
                last = [max(len(piece) - 1, 0) for piece in pieces]
                return self.choose(logits[torch.arange(len(pieces)), last])
        return []

    def pieces(self) -> list[list[int]]:
        """What each request reads next: a chunk of its prompt, or its last token."""
        pieces = [[] for _ in self.prompts]
        for number in self.running:
            sequence, start = self.sequence(number), self.cache.lengths[number]
            pieces[number] = sequence[start : start + self.chunk]
        return pieces

    def choose(self, logits: torch.Tensor) -> list[tuple[int, int]]:
        """Choose a token, from (B, V), for each request whose prompt is read to its end."""
        ready = [n for n in self.running if self.cache.lengths[n] == len(self.sequence(n))]
        for number, fine in zip(ready, are_numbers(logits[ready]).tolist(), strict=True):
            if not fine:
                self.end(number, f"error: {NotANumber.text}")
        ready = [number for number in ready if not self.reasons[number]]
        if not ready:
            return []
        logits = logits[ready]
        samplings, seeds = ([each[n] for n in ready] for each in (self.samplings, self.seeds))
        places = [len(self.sequence(n)) for n in ready]
        chosen = choose(logits, samplings, seeds, places).tolist()
        if self.config.vocab > 1:
            best = logits.topk(2).values
            for number, gap in zip(ready, (best[:, 0] - best[:, 1]).tolist(), strict=True):
                self.margins[number] = min(self.margins[number], gap)
        for number, token in zip(ready, chosen, strict=True):
            self.add(number, token)
        return list(zip(ready, chosen, strict=True))

    def results(self) -> list[Generated]:
        columns = zip(self.prompts, self.tokens, self.reasons, self.margins, strict=True)
        return [
            Generated(prompt=prompt, tokens=tokens, reason=reason, margin=margin)
            for prompt, tokens, reason, margin in columns
        ]

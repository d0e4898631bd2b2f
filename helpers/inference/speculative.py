"""Speculative decoding: a small model guesses some tokens, the target checks all in one forward.

B  prompts        T  new tokens per sequence in one forward, the longest        V  different tokens
g  guesses in a round

Source: Leviathan, Kalman and Matias 2023, algorithm 1; section 2.2 for greedy, top-k and top-p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from helpers.inference.accept import decide
from helpers.inference.reading import GREEDY, Requests, read
from helpers.inference.sampling import (
    NotANumber,
    Sampling,
    are_numbers,
    pick,
    probabilities,
    uniform,
)
from helpers.models.gpt import GPT, kept_by

# The uses of a place's random numbers. A token that the target chooses itself has the number that
# it has without speculation; so without any guess, the tokens are those of `generate`.
NEXT, GUESS, ACCEPT = 0, 1, 2


@dataclass(kw_only=True)
class Speculated:
    """The result for one prompt.

    Attributes:
        prompt: its tokens.
        tokens, reason: as in `Generated`.
        rounds: forwards of the target. Each one gives a token, and the accepted guesses before it.
        proposed: guesses of the draft.
        tested: guesses that were accepted or rejected. Those after a rejected one are dropped.
        accepted: accepted guesses.
    """

    prompt: list[int]
    tokens: list[int]
    reason: str = ""
    rounds: int = 0
    proposed: int = 0
    tested: int = 0
    accepted: int = 0


def generate_speculatively(
    model: GPT,
    draft: GPT,
    prompts: Sequence[Sequence[int]],
    new_tokens: int | Sequence[int],
    *,
    guesses: int = 4,
    sampling: Sampling | Sequence[Sampling] = GREEDY,
    stop: Sequence[int] = (),
    seeds: Sequence[int] | None = None,
) -> list[Speculated]:
    """Generate as `generate` does, in fewer forwards of the model.

    Greedy tokens are the same; sampled ones have the same distribution, but other random numbers.
    If the model's logits are NaN, also after a guess, the request ends with the tokens of before.

    Args:
        model: the target.
        draft: a cheaper model with the same tokens. Near the end of a request or of a context, it
            guesses fewer tokens. If its logits are NaN, it guesses none.
        guesses: g, guesses in a round at most. 0: plain decoding.
        prompts, new_tokens, sampling, stop, seeds: as of `generate`.

    Raises:
        ValueError: an argument is out of its range; the models have different vocabularies; or a
            model has recurrent blocks.
    """
    if model.config.vocab != draft.config.vocab:
        raise ValueError(
            f"the model has {model.config.vocab} tokens and the draft {draft.config.vocab}: both "
            "must have the same"
        )
    for name, one in (("model", model), ("draft", draft)):
        if any(kept.per_sequence for kept in kept_by(one).values()):
            raise ValueError(
                f"the {name} has recurrent blocks, and their state cannot forget a rejected guess: "
                "use `generate`"
            )
    if guesses < 0:
        raise ValueError(f"guesses must not be negative: {guesses!r}")
    return Speculation(model, draft, prompts, new_tokens, guesses, sampling, stop, seeds).run()


class Speculation(Requests):
    """Requests that are generated together. Each round guesses, checks, and forgets what is wrong.

    Attributes:
        results: of each request so far.
    """

    def __init__(self, model, draft, prompts, new_tokens, guesses, sampling, stop, seeds):
        super().__init__(model, prompts, new_tokens, sampling, stop, seeds)
        self.draft, self.guesses = draft, guesses
        pairs = zip(self.prompts, self.tokens, strict=True)
        self.results = [Speculated(prompt=prompt, tokens=tokens) for prompt, tokens in pairs]
        self.cache, self.draft_cache = self.make_cache(model), self.make_cache(draft)

    def run(self) -> list[Speculated]:
        while self.running:
            self.round()
        for one, reason in zip(self.results, self.reasons, strict=True):
            one.reason = reason
        return self.results

    def round(self):
        """Guess, read all guesses at once, and keep those that are accepted, and one more."""
        guessed, q = self.guess()
        pieces = [[] for _ in self.results]
        for number in self.running:
            rest = self.sequence(number)[self.cache.lengths[number] :]
            pieces[number] = rest + guessed[number]
        logits = read(self.model, self.cache, pieces)  # (B, T, V)
        for number in self.running:
            end, many = len(pieces[number]), len(guessed[number])
            self.check(number, guessed[number], q[number], logits[number, end - many - 1 : end])
        for cache in (self.cache, self.draft_cache):  # forget what is not in the sequences
            kept = zip(cache.lengths, map(self.sequence, range(len(self.results))), strict=True)
            cache.rewind([min(length, max(len(all_) - 1, 0)) for length, all_ in kept])

    def guess(self) -> tuple[list[list[int]], list[list[torch.Tensor]]]:
        """Let the draft guess. Return each request's guesses, and their probabilities q (V,)."""
        guessed, q = [[] for _ in self.results], [[] for _ in self.results]
        left = {number: self.room(number) for number in self.running}
        while left := {n: room for n, room in left.items() if room > len(guessed[n])}:
            pieces = [[] for _ in self.results]
            for number in left:
                known = self.sequence(number) + guessed[number]
                pieces[number] = known[self.draft_cache.lengths[number] :]
            logits = read(self.draft, self.draft_cache, pieces)
            for number in list(left):
                row = logits[number, len(pieces[number]) - 1][None]  # (1, V)
                if not are_numbers(row):
                    left[number] = 0
                    continue
                weights = probabilities(row, self.samplings[number])
                place = len(self.sequence(number)) + len(guessed[number])
                draw = uniform(self.seeds[number], place, GUESS)
                guessed[number].append(int(pick(weights, [draw])))
                q[number].append(weights[0])
        return guessed, q

    def room(self, number: int) -> int:
        """How many guesses are of use: one more token follows them, and both contexts end."""
        known = len(self.sequence(number))
        tokens_left = self.most[number] - len(self.tokens[number])
        return min(
            self.guesses,
            tokens_left - 1,
            self.model.config.context - known,  # the target reads all guesses,
            self.draft.config.context - known + 1,  # and the draft all but the last
        )

    def check(self, number: int, guessed: list[int], q: list[torch.Tensor], logits: torch.Tensor):
        """Accept or reject the guesses of one request, from the target's logits (g + 1, V)."""
        one, seed, known = self.results[number], self.seeds[number], len(self.sequence(number))
        one.rounds += 1
        if not are_numbers(logits).all():  # a NaN spreads to earlier places too: 0 · NaN = NaN
            self.end(number, f"error: {NotANumber.text}")
            return
        p = probabilities(logits, self.samplings[number])
        draws = [uniform(seed, known + place, ACCEPT) for place in range(len(guessed))]
        accepted, weights = decide(p, torch.stack(q) if q else p[:0], guessed, draws)
        draw = uniform(seed, known + accepted, NEXT)
        one.proposed += len(guessed)
        one.tested += min(accepted + 1, len(guessed))
        one.accepted += accepted
        for token in [*guessed[:accepted], int(pick(weights[None], [draw]))]:
            if not self.reasons[number]:
                self.add(number, token)

"""Exercise of week 9: causal attention that appends to a cache, and reads it.

The stub:

    def cached_attention(x, weights, heads, cache, rotate):
        '''Attend from the new tokens to all tokens so far, themselves included.

        Args:
            x: (B, T, D), the new tokens of each sequence.
            weights: "query", "key", "value" and "out", (D, D) each: `x @ weights["query"]`.
            heads: H; a head has D/H numbers, and heads follow each other.
            cache: "keys" and "values" of the S tokens before, (B, H, S, D/H) each. Replace them
                by those of all S + T tokens.
            rotate: rotate(t, places) rotates queries or keys (B, H, n, D/H) by their n places.

        Returns:
            (B, T, D).
        '''
"""

import copy
import math

import torch

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict
from helpers.models.attention import rotary_table

SEQUENCES, WIDTH, HEADS = 2, 12, 3
CHUNKS = (3, 1, 2, 1)  # new tokens of each call
CLOSE = 1e-9  # float64, numbers of size 1


def cached_attention(fn) -> Verdict:
    """Check `fn(x, weights, heads, cache, rotate) -> (B, T, D)`, which changes the cache."""
    generator = torch.Generator().manual_seed(hidden.seed(9))

    def some(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = {n: some(WIDTH, WIDTH) / WIDTH**0.5 for n in ("query", "key", "value", "out")}
    xs = some(SEQUENCES, sum(CHUNKS), WIDTH).split(CHUNKS, 1)
    words = "a prompt of 3 tokens, then 1, 2 and 1 more"
    cases = [(words, (list(xs), weights), {})]
    return examine_here("cached_attention", lambda *given: call_all(fn, *given), cases, judge)


def rotate(t: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rotate (B, H, n, d) by n places. The table is long enough for wrong ones."""
    cos, sin = (table[places] for table in rotary_table(64, t.shape[-1], 100.0))
    first, second = t.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def call_all(solve, xs, weights) -> list:
    """Call the function for chunk after chunk, with one cache."""
    empty = xs[0].new_zeros(SEQUENCES, HEADS, 0, WIDTH // HEADS)
    cache, answers = {"keys": empty, "values": empty.clone()}, []
    for x in xs:
        answers.append(solve(x.clone(), copy.deepcopy(weights), HEADS, cache, rotate))
    return answers


def right(mistake: str = ""):
    """The function; with a mistake, one that makes it."""

    def solve(x, weights, heads, cache, rotate):
        start, tokens = cache["keys"].shape[2], x.shape[1]
        q, k, v = (
            (x @ weights[name]).unflatten(-1, (heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        first = 0 if mistake == "restart" else start
        places = torch.arange(first, first + tokens)
        q = q if mistake in ("queries plain", "nothing rotated") else rotate(q, places)
        k = k if mistake in ("keys plain", "nothing rotated") else rotate(k, places)
        v = rotate(v, places) if mistake == "values rotated" else v
        before = dict(cache)
        every = {
            "keys": torch.cat([cache["keys"], k], 2),
            "values": torch.cat([cache["values"], v], 2),
        }
        if mistake != "never written":
            cache.update(every)
        keys, values = every["keys"], every["values"]
        if mistake in ("read first", "read first, masked"):
            keys, values = before["keys"], before["values"]
        if mistake in ("twice", "twice, kept"):
            keys = rotate(keys, torch.arange(keys.shape[2]))
            if mistake == "twice, kept":
                cache["keys"] = keys
        total = keys.shape[2]
        offset = {
            "sees one less": total - tokens - 1,
            "sees one more": total - tokens + 1,
            "mask from the left": 0,
            "no mask": total,
            "read first": total,
        }.get(mistake, total - tokens)
        seen = torch.ones(tokens, total, dtype=torch.bool).tril(offset)
        scale = {"unscaled": 1, "scaled by D": x.shape[-1]}.get(mistake, q.shape[-1])
        scores = (q @ keys.mT / math.sqrt(scale)).masked_fill(~seen, -math.inf)
        y = scores.softmax(-1) @ values  # (B, H, T, D/H)
        if mistake == "heads mixed":
            return y.reshape(x.shape) @ weights["out"]
        y = y.transpose(1, 2).flatten(2)
        return y if mistake == "no output" else y @ weights["out"]

    return solve


HINTS = {
    "restart": "The places start at 0 in each call. How many tokens came before these?",
    "sees one less": "The mask is off by one: a token sees itself, too.",
    "sees one more": "The mask is off by one: a token sees the token after it.",
    "mask from the left": "The mask is that of a text without a cache: query t sees keys 0 to t. "
    "With S tokens before it, up to which key does it see?",
    "no mask": "In a call with several tokens, each sees those after it. Where is the mask?",
    "read first": "The keys were read before the new ones were appended, so a token does not see "
    "itself. Write into the cache, then read it.",
    "read first, masked": "The keys were read before the new ones were appended, so a token does "
    "not see itself. Write into the cache, then read it.",
    "never written": "The tokens of earlier calls are not there. Replace the cache's tensors, "
    '`cache["keys"] = …`, and append to those that were there.',
    "twice": "Keys in the cache are rotated again. Rotate each key once: when it is new, or when "
    "it is read.",
    "twice, kept": "Keys in the cache are rotated again in each call. Rotate each key once: when "
    "it is new, or when it is read.",
    "queries plain": "The queries are not rotated.",
    "keys plain": "The keys are not rotated.",
    "nothing rotated": "Neither queries nor keys are rotated, so the order of tokens is lost.",
    "values rotated": "The values are rotated. Places belong into the scores alone.",
    "unscaled": "The scores are too large: divide them by the root of … what?",
    "scaled by D": "Divide the scores by the root of a head's width, not of the model's.",
    "heads mixed": "The heads of a token belong side by side: move the dim of heads behind that of "
    "tokens before you merge them.",
    "no output": 'The last product, with weights["out"], is missing.',
}


def judge(answers, xs, weights):
    for number, (answer, x) in enumerate(zip(answers, xs, strict=True), start=1):
        if not isinstance(answer, torch.Tensor):
            raise NotRight(f"call {number} returned {type(answer).__name__}", "Return a tensor.")
        if answer.shape != x.shape:
            raise NotRight(
                f"call {number} returned shape {tuple(answer.shape)}",
                f"Return one row of D numbers for each new token: {tuple(x.shape)}.",
            )
    exact = call_all(right(), xs, weights)
    wrong = [n for n, pair in enumerate(zip(answers, exact, strict=True)) if not near(*pair)]
    if not wrong:
        return
    hint = next(
        (
            HINTS[name]
            for name in HINTS
            if all(map(alike, answers, call_all(right(name), xs, weights)))
        ),
        "Compare line by line: project, split into heads, rotate by the places, append, mask, "
        "softmax, merge the heads, project.",
    )
    off = float((answers[wrong[0]] - exact[wrong[0]]).abs().max())
    said = f"is off by up to {off:.2g}" if math.isfinite(off) else "has numbers that are not finite"
    raise NotRight(f"call {wrong[0] + 1} of {len(xs)} {said}", hint)


def near(found: torch.Tensor, exact: torch.Tensor) -> bool:
    return bool(torch.allclose(found.double(), exact, rtol=0, atol=CLOSE))


def alike(found: torch.Tensor, wrong: torch.Tensor) -> bool:
    """Whether a mistake gives this. A query that sees nothing gives NaN in some ways of writing."""
    known = wrong.isfinite()
    return bool(torch.allclose(found.double()[known], wrong[known], rtol=0, atol=CLOSE))

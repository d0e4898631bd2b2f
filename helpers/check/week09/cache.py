"""Exercises of week 9: attention with a cache, and the bytes of a cache."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers.check import hidden
from helpers.check.exercise import Exercise, Number
from helpers.models.attention import rotary_table


def right_bytes(layers, width, heads, kv_heads, sequences, tokens, number_bytes) -> int:
    return 2 * layers * kv_heads * (width // heads) * sequences * tokens * number_bytes


def drawn_model(random) -> tuple[int, int, int, int]:
    """Layers, width, heads and kv_heads."""
    kv_heads, groups, head_width = (random.randint(1, 9) for _ in range(3))
    heads = kv_heads * groups
    return random.randint(2, 99), heads * head_width, heads, kv_heads


def drawn_cache(random):
    sizes = (random.randint(2, 99), random.randint(2, 9999), random.choice((1, 2, 4)))
    return "another model", (*drawn_model(random), *sizes)


NUMBER = "How many bytes has a number here? It is an argument."
cache_bytes = Number(
    name="cache_bytes",
    right=right_bytes,
    unit="bytes",
    draw=drawn_cache,
    cases=(  # layers, width, heads, kv_heads, sequences, tokens, bytes of a number
        ("7 layers, 12 and 3 heads, 11 sequences of 5 tokens in fp32", (7, 96, 12, 3, 11, 5, 4)),
        ("Llama 2 7B, one sequence of 4,096 tokens in bf16", (32, 4096, 32, 32, 1, 4096, 2)),
        ("Llama 2 70B, 8 sequences of 4,096 tokens in bf16", (80, 8192, 64, 8, 8, 4096, 2)),
        ("Llama 3 405B, 16 sequences of 8,192 tokens in int8", (126, 16384, 128, 8, 16, 8192, 1)),
        ("an empty cache", (2, 8, 2, 1, 4, 0, 2)),
    ),
    slips=(
        (lambda b, g: b / 2, "Each token leaves a key, and what else?"),
        (lambda b, g: b / g.layers, "Each layer keeps keys and values of its own."),
        (lambda b, g: g(kv_heads=g.heads), "Queries are not kept: count heads of keys and values."),
        (lambda b, g: b / g.kv_heads, "Each head of keys and values keeps its own."),
        (lambda b, g: b * g.heads, "A head is not as wide as the model."),
        (lambda b, g: b * g.heads / g.width, "A key has as many numbers as a head is wide."),
        (lambda b, g: g(sequences=1), "Each sequence of the batch has a cache of its own."),
        (lambda b, g: b / max(g.tokens, 1), "Every token of a sequence is kept, not one only."),
        (lambda b, g: b * g.tokens, "Keys and values grow with the tokens, the matrix of scores "
         "with their square."),
        (lambda b, g: b * 8, "Return bytes, not bits."),
        (lambda b, g: g(number_bytes=1), "That counts numbers: how many bytes has each?"),
        (lambda b, g: g(number_bytes=2), NUMBER),
        (lambda b, g: g(number_bytes=4), NUMBER),
        (lambda b, g: b / 2**30, "Return bytes, not GiB."),
        (lambda b, g: b / 1e9, "Return bytes, not gigabytes."),
        (lambda b, g: b * (1 + g.heads / g.kv_heads / 2), "Queries are not kept: later tokens do "
         "not need them."),
        (lambda b, g: b or 64, "How many tokens are in this cache?"),
    ),
    last="Per token: how many layers, how many heads of keys and values, how wide is each?",
)  # fmt: skip


def right_batch(params, param_bytes, layers, width, heads, kv_heads, tokens, number_bytes) -> int:
    each = right_bytes(layers, width, heads, kv_heads, 1, tokens, number_bytes)
    return params * param_bytes // each + 1


def drawn_batch(random):
    weights = (random.randint(10**6, 10**10), random.choice((1, 2, 4)))
    sizes = (random.randint(1, 9999), random.choice((1, 2, 4)))
    return "another model", (*weights, *drawn_model(random), *sizes)


def exactly(g) -> float:
    """The batch at which both have the same bytes."""
    each = right_bytes(g.layers, g.width, g.heads, g.kv_heads, 1, g.tokens, g.number_bytes)
    return g.params * g.param_bytes / each


outgrowing_batch = Number(
    name="outgrowing_batch",
    right=right_batch,
    unit="sequences",
    draw=drawn_batch,
    cases=(  # parameters, bytes of each, layers, width, heads, kv_heads, tokens, bytes of a number
        ("a million parameters in fp32, 11 tokens", (1_000_003, 4, 7, 120, 15, 3, 11, 4)),
        ("Llama 2 7B in bf16, 4,096 tokens", (6_738_415_616, 2, 32, 4096, 32, 32, 4096, 2)),
        ("Llama 2 70B in bf16, 4,096 tokens", (68_976_648_192, 2, 80, 8192, 64, 8, 4096, 2)),
        ("Llama 2 7B in int8, cache in bf16", (6_738_415_616, 1, 32, 4096, 32, 32, 4096, 2)),
        ("Llama 2 7B in bf16, cache in int8", (6_738_415_616, 2, 32, 4096, 32, 32, 4096, 1)),
        ("a batch of 10 has exactly the bytes of the weights", (19_200, 2, 3, 32, 4, 2, 20, 2)),
        ("a small model, long sequences", (1000, 2, 3, 32, 4, 2, 2000, 2)),
    ),
    slips=(
        (lambda b, g: exactly(g), "Sequences are whole: which is the first number that is enough?"),
        (lambda b, g: exactly(g) + 1, "Sequences are whole: which is the first number that is "
         "enough?"),
        (lambda b, g: math.ceil(exactly(g)), "At some batch both have the same bytes. You need "
         "more."),
        (lambda b, g: b - 1, "At this batch the weights still have more bytes."),
        (lambda b, g: round(exactly(g)), "At this batch the weights may still have more bytes: do "
         "not round."),
        (lambda b, g: g(param_bytes=g.number_bytes), "A parameter and a kept number have different "
         "sizes here: give each its own bytes."),
        (lambda b, g: g(number_bytes=g.param_bytes), "A parameter and a kept number have different "
         "sizes here: give each its own bytes."),
        (lambda b, g: 1 + int(exactly(g) * 2), "Each token leaves a key, and what else?"),
        (lambda b, g: g(kv_heads=g.heads), "Queries are not kept: count heads of keys and values."),
        (lambda b, g: g(layers=1), "Each layer keeps keys and values of its own."),
        (lambda b, g: g(tokens=1), "Each sequence keeps all its tokens."),
        (lambda b, g: 1 + int(exactly(g) / g.heads), "A head is not as wide as the model."),
        (lambda b, g: g(param_bytes=1), "A parameter has more than one byte."),
        (lambda b, g: g(number_bytes=1), "How many bytes has a number of the cache?"),
    ),
    last="Divide the bytes of the weights by those of one sequence. What does a sequence keep?",
)  # fmt: skip


# cached_attention: B sequences, T new tokens after S others, D wide, H heads

SEQUENCES, WIDTH, HEADS = 2, 12, 3
CHUNKS = (3, 1, 2, 1)  # new tokens of each call
KEPT = "tokens in the cache after each call"


def rotate(t: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rotate (B, H, n, d) by n places. The table is long enough for wrong ones."""
    cos, sin = (table[places] for table in rotary_table(64, t.shape[-1], 100.0))
    first, second = t.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def prompt_and_more():
    generator = torch.Generator().manual_seed(hidden.seed(9))

    def some(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = {n: some(WIDTH, WIDTH) / WIDTH**0.5 for n in ("query", "key", "value", "out")}
    xs = some(SEQUENCES, sum(CHUNKS), WIDTH).split(CHUNKS, 1)
    return [("a prompt of 3 tokens, then 1, 2 and 1 more", (list(xs), weights))]


def call_all(solve, xs, weights) -> dict:
    """Call the function for chunk after chunk, with one cache."""
    empty = xs[0].new_zeros(SEQUENCES, HEADS, 0, WIDTH // HEADS)
    cache, answers, kept = {"keys": empty, "values": empty.clone()}, {}, []
    for number, x in enumerate(xs, start=1):
        answers[f"call {number} of {len(xs)} returned"] = solve(
            x.clone(), copy.deepcopy(weights), HEADS, cache, rotate
        )
        kept.append(cache["keys"].shape[2])
    return {**answers, KEPT: kept}


def causal(tokens: int, total: int, start: int) -> torch.Tensor:
    """Which of all keys each new token sees: (T, S + T)."""
    return torch.ones(tokens, total, dtype=torch.bool).tril(start)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The reference in pieces. A mistake replaces one of them."""

    split: Callable = lambda t, heads: t.unflatten(-1, (heads, -1)).transpose(1, 2)
    project: Callable = lambda x, weight: x @ weight
    names: tuple[str, str, str] = ("query", "key", "value")
    first: Callable = lambda start: start
    rotated: tuple[bool, bool, bool] = (True, True, False)  # queries, keys, values
    append: Callable = lambda old, new: torch.cat([old, new], 2)
    keep: Callable = lambda cache, every, new: cache.update(every)
    read: Callable = lambda every, new, old: every
    mask: Callable = causal
    scale: Callable = lambda q, x: q.shape[-1] ** -0.5
    soften: Callable = lambda scores, seen: scores.masked_fill(~seen, -math.inf).softmax(-1)
    merge: Callable = lambda y, x: y.transpose(1, 2).flatten(2)
    out: Callable = lambda y, weights: y @ weights["out"]

    def __call__(self, x, weights, heads, cache, rotate):
        start, tokens = cache["keys"].shape[2], x.shape[1]
        new = [self.split(self.project(x, weights[name]), heads) for name in self.names]
        places = self.first(start) + torch.arange(tokens)
        q, k, v = (
            rotate(t, places) if turned else t for t, turned in zip(new, self.rotated, strict=True)
        )
        new, old = {"keys": k, "values": v}, dict(cache)
        every = {name: self.append(old[name], new[name]) for name in new}
        self.keep(cache, every, new)
        seen = self.read(every, new, old)
        keys, values = seen["keys"], seen["values"]
        mask = self.mask(tokens, keys.shape[2], keys.shape[2] - tokens)
        y = self.soften(q @ keys.mT * self.scale(q, x), mask) @ values  # (B, H, T, D/H)
        return self.out(self.merge(y, x), weights)


def turned_again(every, new, old):
    return every | {"keys": rotate(every["keys"], torch.arange(every["keys"].shape[2]))}


def keep_turned(cache, every, new):
    every["keys"] = turned_again(every, new, None)["keys"]
    cache.update(every)


def wrong(**pieces) -> Attention:
    return Attention(**pieces)


OFF_BY_ONE = "The mask is off by one: a token sees itself, too, and no later one."
TWICE = (
    "Keys in the cache are rotated again. Rotate each key once: when it is new, or when it is read."
)
EARLIER = (
    "The tokens of earlier calls are not there. Replace the cache's tensors, "
    '`cache["keys"] = …`, and append to those that were there.'
)
READ_FIRST = (
    "The keys were read before the new ones were appended, so a token does not see itself. "
    "Write into the cache, then read it."
)
HEADS_APART = (
    "The heads of a token lie side by side in its D numbers. Split the last dim first, then move "
    "the dim of heads in front of that of tokens; and back before you merge them."
)
SCALE = "Divide the scores by the root of a head's width."
cached_attention = Exercise(
    name="cached_attention",
    right=Attention(),
    play=call_all,
    cases=prompt_and_more,
    free=(KEPT,),
    close=1e-9,  # float64, numbers of size 1
    slips=(
        (wrong(first=lambda start: 0), "The places start at 0 in each call. How many tokens came "
         "before these?"),
        (wrong(mask=lambda t, n, s: causal(t, n, s - 1)), OFF_BY_ONE),
        (wrong(mask=lambda t, n, s: causal(t, n, s + 1)), OFF_BY_ONE),
        (wrong(mask=lambda t, n, s: causal(t, n, 0)), "The mask is that of a text without a cache: "
         "query t sees keys 0 to t. With S tokens before it, up to which key does it see?"),
        (wrong(mask=lambda t, n, s: causal(t, n, s if s == 0 else n)), "With S tokens before them, "
         "several new tokens still must not see each other's future. `is_causal` fits where S = 0; "
         "which mask fits the others?"),
        (wrong(mask=lambda t, n, s: causal(t, n, 0 if t > 1 else n)), "The mask is that of a text "
         "without a cache wherever there are several tokens. Up to which key does a token see?"),
        (wrong(mask=lambda t, n, s: causal(t, n, n)), "In a call with several tokens, each sees "
         "those after it. Where is the mask?"),
        (wrong(mask=lambda t, n, s: ~causal(t, n, s - 1)), "The mask is upside down: a token sees "
         "itself and those before it."),
        (wrong(mask=lambda t, n, s: causal(t, n, s).flip(-1)), "The mask is upside down: a token "
         "sees itself and those before it."),
        (wrong(soften=lambda s, seen: s.softmax(-1) * seen), "Masked after the softmax, the rest "
         "does not sum to 1. Mask the scores, before it."),
        (wrong(soften=lambda s, seen: (s * seen).softmax(-1)), "A score of 0 is not masked: exp(0) "
         "is 1. With which score does a key get no weight?"),
        (wrong(soften=lambda s, seen: s.masked_fill(~seen, 0).softmax(-1)), "A score of 0 is not "
         "masked: exp(0) is 1. With which score does a key get no weight?"),
        (wrong(soften=lambda s, seen: s.masked_fill(~seen, -math.inf).softmax(-2)), "The softmax "
         "is over the queries. For each query, over which dim do the weights sum to 1?"),
        (wrong(soften=lambda s, seen: s.masked_fill(~seen, 0)), "Scores are no weights yet: which "
         "function makes them sum to 1?"),
        (wrong(read=lambda every, new, old: old, mask=lambda t, n, s: causal(t, n, n)), READ_FIRST),
        (wrong(read=lambda every, new, old: old), READ_FIRST),
        (wrong(read=lambda every, new, old: new), "The new tokens see each other only. Read all "
         "keys and values of the cache."),
        (wrong(keep=lambda cache, every, new: None), EARLIER),
        (wrong(keep=lambda cache, every, new: cache.update(new)), "The cache keeps the tokens of "
         "the last call only: append the new ones to those that were there."),
        (wrong(append=lambda old, new: torch.cat([new, old], 2)), "The new keys are in front of "
         "the old ones, and the mask expects them behind. In which order do you append?"),
        (wrong(read=turned_again), TWICE),
        (wrong(keep=keep_turned), TWICE),
        (wrong(rotated=(False, True, False)), "The queries are not rotated."),
        (wrong(rotated=(True, False, False)), "The keys are not rotated."),
        (wrong(rotated=(False, False, False)), "Neither queries nor keys are rotated, so the order "
         "of tokens is lost."),
        (wrong(rotated=(True, True, True)), "The values are rotated. Places belong into the scores "
         "alone."),
        (wrong(rotated=(False, False, True)), "The values are rotated. Places belong into the "
         "scores: into which two tensors?"),
        (wrong(scale=lambda q, x: 1), "The scores are too large: divide them by the root of … "
         "what?"),
        (wrong(scale=lambda q, x: x.shape[-1] ** -0.5), SCALE + " Not of the model's."),
        (wrong(scale=lambda q, x: 1 / q.shape[-1]), SCALE + " You divide by the width itself."),
        (wrong(scale=lambda q, x: q.shape[-1] ** 0.5), SCALE + " You multiply."),
        (wrong(scale=lambda q, x: HEADS**-0.5), SCALE + " That is not the number of heads."),
        (wrong(names=("query", "key", "key")), "Which weight makes the values?"),
        (wrong(names=("key", "query", "value")), "Queries and keys are exchanged: each token asks "
         "with its own query."),
        (wrong(project=lambda x, w: x @ w.mT), "The weights are transposed: x @ weight."),
        (wrong(split=lambda t, h: t.reshape(len(t), h, t.shape[1], -1)), HEADS_APART),
        (wrong(split=lambda t, h: t.unflatten(-1, (-1, h)).permute(0, 3, 1, 2)), HEADS_APART),
        (wrong(merge=lambda y, x: y.reshape(x.shape)), HEADS_APART),
        (wrong(merge=lambda y, x: y.permute(0, 2, 3, 1).flatten(2)), HEADS_APART),
        (wrong(out=lambda y, weights: y), 'The last product, with weights["out"], is missing.'),
        (wrong(out=lambda y, weights: y @ weights["out"].mT), 'weights["out"] is transposed.'),
    ),
    last="Compare line by line: project, split into heads, rotate by the places, append, mask, "
    "softmax, merge the heads, project.",
)  # fmt: skip

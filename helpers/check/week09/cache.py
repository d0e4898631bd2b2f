"""Exercises of week 9: attention with a cache, and the bytes of a cache."""

import copy
import math

import torch

from helpers.check import hidden
from helpers.check.exercise import Edit, Exercise
from helpers.check.number import Number
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


cache_bytes = Number(
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
        (lambda b, g: g(kv_heads=g.heads), "Queries are not kept: count heads of keys and values."),
        (lambda b, g: b * g.heads, "A head is not as wide as the model."),
        (lambda b, g: b * g.heads / g.width, "A key has as many numbers as a head is wide."),
        (lambda b, g: b * g.heads / g.kv_heads * g.heads, "That is the width of the model for "
         "each head of queries. Which heads are kept, and how wide is a head?"),
        (lambda b, g: b * g.tokens, "Keys and values grow with the tokens, the matrix of scores "
         "with their square."),
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
        (lambda b, g: exactly(g), lambda b, g: exactly(g) + 1, "Sequences are whole: which is the "
         "first number that is enough?"),
        (lambda b, g: math.ceil(exactly(g)), lambda b, g: b - 1, "At some batch both have the same "
         "bytes. You need more."),
        (lambda b, g: round(exactly(g)), "At this batch the weights may still have more bytes: do "
         "not round."),
        (lambda b, g: g(number_bytes=g.param_bytes), lambda b, g: g(param_bytes=g.number_bytes),
         lambda b, g: g(number_bytes=g.param_bytes, param_bytes=g.number_bytes), "A parameter and "
         "a kept number have different sizes here: give each its own bytes."),
        (lambda b, g: 1 + int(exactly(g) * 2), "Each token leaves a key, and what else?"),
        (lambda b, g: g(kv_heads=g.heads), "Queries are not kept: count heads of keys and values."),
        (lambda b, g: 1 + int(exactly(g) / g.heads), "A head is not as wide as the model."),
        (lambda b, g: 1 + int(exactly(g) * g.kv_heads / g.heads / g.heads), "That is the width of "
         "the model for each head of queries. Which heads are kept, and how wide is a head?"),
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


def calls(words: str, chunks):
    generator = torch.Generator().manual_seed(hidden.seed(9))

    def some(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = {n: some(WIDTH, WIDTH) / WIDTH**0.5 for n in ("query", "key", "value", "out")}
    xs = some(SEQUENCES, sum(chunks), WIDTH).split(chunks, 1)
    return words, (list(xs), weights)


def drawn_calls(random):
    chunks = [random.randint(1, 5) for _ in CHUNKS]
    return calls(f"calls of {chunks} tokens", chunks)


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


def attend(x, weights, heads, cache, rotate):
    start, tokens = cache["keys"].shape[2], x.shape[1]
    names = ("query", "key", "value")
    q, k, v = ((x @ weights[n]).unflatten(-1, (heads, -1)).transpose(1, 2) for n in names)
    places = start + torch.arange(tokens)
    q, k = rotate(q, places), rotate(k, places)
    keys, values = torch.cat([cache["keys"], k], 2), torch.cat([cache["values"], v], 2)
    cache.update(keys=keys, values=values)
    sees = causal(tokens, keys.shape[2], start)
    scores = q @ keys.mT * q.shape[-1] ** -0.5
    y = scores.masked_fill(~sees, -math.inf).softmax(-1) @ values  # (B, H, T, D/H)
    return y.transpose(1, 2).flatten(2) @ weights["out"]


CAUSAL = "causal(tokens, keys.shape[2], start)"
WEIGHTS = "scores.masked_fill(~sees, -math.inf).softmax(-1)"
KEEP, READ = "cache.update(keys=keys, values=values)", "    sees = causal("
SCALE = "q.shape[-1] ** -0.5"
SPLIT = "(x @ weights[n]).unflatten(-1, (heads, -1)).transpose(1, 2)"
TURN = "q, k = rotate(q, places), rotate(k, places)"
NEW_FIRST = ('torch.cat([cache["keys"], k], 2), torch.cat([cache["values"], v], 2)',
             'torch.cat([k, cache["keys"]], 2), torch.cat([v, cache["values"]], 2)')  # fmt: skip
AGAIN = "    keys = rotate(keys, torch.arange(keys.shape[2]))\n"
cached_attention = Exercise(
    right=attend,
    play=call_all,
    cases=lambda: [calls("a prompt of 3 tokens, then 1, 2 and 1 more", CHUNKS)],
    draw=drawn_calls,
    free=(KEPT,),
    close=1e-9,  # float64, numbers of size 1
    slips=(
        (Edit("start + torch.arange", "torch.arange"), "The places start at 0 in each call. How "
         "many tokens came before these?"),
        (Edit("start + torch.arange(tokens)", "start + tokens + torch.arange(tokens)"),
         Edit("start + torch.arange(tokens)", "torch.full((tokens,), start)"),
         Edit("rotate(q, places)", "rotate(q, torch.arange(tokens))"),
         Edit("rotate(q, places)", "rotate(q, places[-1:].repeat(tokens))"),
         Edit("rotate(k, places)", "rotate(k, torch.arange(tokens))"), "Each new token has its own "
         "place, for its query and its key: S, S + 1, … Which places do you give to rotate?"),
        (Edit(CAUSAL, "causal(tokens, keys.shape[2], start - 1)"),
         Edit(CAUSAL, "causal(tokens, keys.shape[2], start + 1)"), "The mask is off by one: a "
         "token sees itself, too, and no later one."),
        (Edit(CAUSAL, "causal(tokens, keys.shape[2], 0)"), "The mask is that of a text without a "
         "cache: query t sees keys 0 to t. With S tokens before it, up to which key does it see?"),
        (Edit(CAUSAL, "causal(tokens, keys.shape[2], start if start == 0 else 99)"), "With S "
         "tokens before them, several new tokens still must not see each other's future. "
         "`is_causal` fits where S = 0; which mask fits the others?"),
        (Edit(CAUSAL, "causal(tokens, keys.shape[2], 0 if tokens > 1 else 99)"), "The mask is that "
         "of a text without a cache wherever there are several tokens. Up to which key does a "
         "token see?"),
        (Edit(CAUSAL, "causal(tokens, keys.shape[2], 99)"), "In a call with several tokens, each "
         "sees those after it. Where is the mask?"),
        (Edit("~sees, ", "sees, "), Edit("~sees, ", "sees.tril(start - 1), "),
         Edit(CAUSAL, CAUSAL + ".flip(-1)"), "The mask is upside down: a token sees itself and "
         "those before it."),
        (Edit(WEIGHTS, "(scores.softmax(-1) * sees)"), "Masked after the softmax, the rest does "
         "not sum to 1. Mask the scores, before it."),
        (Edit("-math.inf", "0"), Edit("-math.inf", "-1"), "A score of 0 is not "
         "masked: exp(0) is 1. With which score does a key get no weight?"),
        (Edit("softmax(-1)", "softmax(-2)"), "The softmax is over the queries. For each query, "
         "over which dim do the weights sum to 1?"),
        (Edit("-math.inf).softmax(-1)", "0)"), "Scores are no weights yet: which function makes "
         "them sum to 1?"),
        (Edit(KEEP, "now = dict(keys=keys, values=values)", READ,
              '    keys, values = cache["keys"], cache["values"]\n    cache.update(now)\n' + READ),
         Edit(KEEP, "now = dict(keys=keys, values=values)", READ,
              '    keys, values = cache["keys"], cache["values"]\n    cache.update(now)\n' + READ,
              "start)", "99)"), "The keys were read before the new ones were appended, so a token "
         "does not see itself. Write into the cache, then read it."),
        (Edit(READ, "    keys, values, start = k, v, 0\n" + READ), "The new tokens see each other "
         "only. Read all keys and values of the cache."),
        (Edit("    " + KEEP + "\n", ""), "The tokens of earlier calls are not there. Replace the "
         'cache\'s tensors, `cache["keys"] = …`, and append to those that were there.'),
        (Edit(KEEP, "cache.update(keys=k, values=v)"), "The cache keeps the tokens of the last "
         "call only: append the new ones to those that were there."),
        (Edit(KEEP, "cache.update(keys=keys)"), Edit(KEEP, "cache.update(values=values)"),
         "Keys and values both go into the cache. Which of the two is not there?"),
        (Edit(*NEW_FIRST), "The new keys are in front of the old ones, and the mask expects them "
         "behind. In which order do you append?"),
        (Edit(READ, AGAIN + READ), Edit("    " + KEEP, AGAIN + "    " + KEEP),
         "Keys in the cache are rotated again. Rotate each key once: when it is new, or when it is "
         "read."),
        (Edit(TURN, "k = rotate(k, places)"), "The queries are not rotated."),
        (Edit(TURN, "q = rotate(q, places)"), "The keys are not rotated."),
        (Edit(TURN, "pass"), "Neither queries nor keys are rotated, so the order of tokens is "
         "lost."),
        (Edit(TURN, "q, k, v = (rotate(one, places) for one in (q, k, v))"),
         Edit(TURN, "v = rotate(v, places)"), "The values are rotated. Places belong into the "
         "scores: into which two tensors?"),
        (Edit(" * " + SCALE, ""), Edit(SCALE, "x.shape[-1] ** -0.5"), Edit(SCALE, "heads**-0.5"),
         Edit(SCALE, "1 / q.shape[-1]"), Edit(SCALE, "q.shape[-1] ** 0.5"),
         Edit(" * " + SCALE, "", ".softmax(-1) @", ".softmax(-1) / q.shape[-1] ** 0.5 @"),
         "Divide the scores by the root of a head's width: not of the model's, nor by the width "
         "itself."),
        (Edit("[cache[\"keys\"], k], 2", "[cache[\"keys\"], k], 1"),
         Edit("[cache[\"keys\"], k], 2", "[cache[\"keys\"], k], -1"), "Keys are (B, H, S, D/H). "
         "Along which dim do the new tokens follow?"),
        (Edit('"key", "value")', '"key", "key")'), Edit(") @ values", ") @ keys"), "Which weight "
         "makes the values, and what do you sum?"),
        (Edit('("query", "key",', '("key", "query",'), "Queries and keys are exchanged: each token "
         "asks with its own query."),
        (Edit("x @ weights[n]", "x @ weights[n].mT"), "The weights are transposed: x @ weight."),
        (Edit(SPLIT, "(x @ weights[n]).reshape(len(x), heads, tokens, -1)"),
         Edit(SPLIT, "(x @ weights[n]).unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)"),
         Edit("y.transpose(1, 2).flatten(2)", "y.reshape(x.shape)"),
         Edit("y.transpose(1, 2).flatten(2)", "y.permute(0, 2, 3, 1).flatten(2)"), "The heads of a "
         "token lie side by side in its D numbers. Split the last dim first, then move the dim of "
         "heads in front of that of tokens; and back before you merge them."),
        (Edit(' @ weights["out"]', ""), 'The last product, with weights["out"], is missing.'),
        (Edit('weights["out"]', 'weights["out"].mT'), 'weights["out"] is transposed.'),
    ),
    last="Compare line by line: project, split into heads, rotate by the places, append, mask, "
    "softmax, merge the heads, project.",
)  # fmt: skip

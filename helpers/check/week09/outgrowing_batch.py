"""Exercise of week 9: the batch at which the cache has more bytes than the weights."""

import math

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.check.week09.cache_bytes import drawn_model, right_bytes

# Words; parameters, bytes of each, layers, width, heads, kv_heads, tokens, bytes of a kept number.
CASES = (
    ("a million parameters in fp32, 11 tokens", (1_000_003, 4, 7, 120, 15, 3, 11, 4)),
    ("Llama 2 7B in bf16, 4,096 tokens", (6_738_415_616, 2, 32, 4096, 32, 32, 4096, 2)),
    ("Llama 2 70B in bf16, 4,096 tokens", (68_976_648_192, 2, 80, 8192, 64, 8, 4096, 2)),
    ("Llama 2 7B in int8, its cache in bf16", (6_738_415_616, 1, 32, 4096, 32, 32, 4096, 2)),
    ("Llama 2 7B in bf16, its cache in int8", (6_738_415_616, 2, 32, 4096, 32, 32, 4096, 1)),
    ("a batch of 10 has exactly the bytes of the weights", (19_200, 2, 3, 32, 4, 2, 20, 2)),
    ("a small model, long sequences", (1000, 2, 3, 32, 4, 2, 2000, 2)),
)


def outgrowing_batch(fn) -> Verdict:
    """Check `fn(params, param_bytes, layers, width, heads, kv_heads, tokens, number_bytes)`.

    The answer is the smallest number of sequences, of `tokens` each, whose cache has more bytes
    than the weights.
    """
    cases = [(where, arguments, {}) for where, arguments in (*CASES, *hidden.more(drawn))]
    return examine_here("outgrowing_batch", fn, cases, judge)


def drawn(random):
    weights = (random.randint(10**6, 10**10), random.choice((1, 2, 4)))
    sizes = (random.randint(1, 9999), random.choice((1, 2, 4)))
    return "another model", (*weights, *drawn_model(random), *sizes)


def right_batch(params, param_bytes, layers, width, heads, kv_heads, tokens, number_bytes) -> int:
    each = right_bytes(layers, width, heads, kv_heads, 1, tokens, number_bytes)
    return params * param_bytes // each + 1


def judge(answer, *arguments):
    if not is_number(answer):
        raise NotRight(f"returned {answer!r}", "Return a number of sequences.")
    right = right_batch(*arguments)
    if answer != right:
        raise NotRight(f"you said {answer:,.10g}; it is {right:,}", hint(answer, right, *arguments))


def hint(
    said, right, params, param_bytes, layers, width, heads, kv_heads, tokens, number_bytes
) -> str:
    """Which common mistake gives this number?"""
    weights = params * param_bytes
    each = right_bytes(layers, width, heads, kv_heads, 1, tokens, number_bytes)
    if not math.isfinite(said) or said != int(said):
        return "Sequences are whole: which is the first number of them that is enough?"
    if said == right - 1 and weights % each == 0:
        return "At this batch both have the same bytes. You need more."
    if said == right - 1:
        return "At this batch the weights still have more bytes."
    if param_bytes != number_bytes and said in (params * number_bytes // each + n for n in (0, 1)):
        return "A parameter and a kept number have different sizes here: give each its own bytes."
    slips = (
        (weights, each / 2, "Each token leaves a key, and what else?"),
        (weights, each * heads / kv_heads, "Queries are not kept: count heads of keys and values."),
        (weights, each / layers, "Each layer keeps keys and values of its own."),
        (weights, each / tokens, "Each sequence keeps all its tokens."),
        (params, each, "A parameter has more than one byte."),
        (weights, each / number_bytes, "How many bytes has a number of the cache?"),
    )
    for top, bottom, words in slips:
        if said in (top // bottom, top // bottom + 1):
            return words
    if said > right:
        return "A smaller batch is enough already: divide the weights' bytes by a sequence's."
    return "At this batch the weights still have more bytes. What does a sequence keep?"

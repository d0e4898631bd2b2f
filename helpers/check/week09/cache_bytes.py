"""Exercise of week 9: bytes of a cache of keys and values, from a model's configuration."""

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict

# Words; layers, width, heads, kv_heads, sequences, tokens, bytes of a number.
CASES = (
    ("7 layers, 12 and 3 heads, 11 sequences of 5 tokens in fp32", (7, 96, 12, 3, 11, 5, 4)),
    ("Llama 2 7B, one sequence of 4,096 tokens in bf16", (32, 4096, 32, 32, 1, 4096, 2)),
    ("Llama 2 70B, 8 sequences of 4,096 tokens in bf16", (80, 8192, 64, 8, 8, 4096, 2)),
    ("Llama 3 405B, 16 sequences of 8,192 tokens in int8", (126, 16_384, 128, 8, 16, 8192, 1)),
    ("an empty cache", (2, 8, 2, 1, 4, 0, 2)),
)


def cache_bytes(fn) -> Verdict:
    """Check `fn(layers, width, heads, kv_heads, sequences, tokens, number_bytes) -> bytes`.

    `width` is that of the model; `tokens` are those of one sequence.
    """
    cases = [(where, arguments, {}) for where, arguments in (*CASES, *hidden.more(drawn))]
    return examine_here("cache_bytes", fn, cases, judge)


def drawn(random):
    sizes = (random.randint(1, 99), random.randint(1, 9999), random.choice((1, 2, 4)))
    return "another model", (*drawn_model(random), *sizes)


def drawn_model(random) -> tuple[int, int, int, int]:
    """Layers, width, heads and kv_heads."""
    kv_heads, groups, head_width = (random.randint(1, 9) for _ in range(3))
    heads = kv_heads * groups
    return random.randint(2, 99), heads * head_width, heads, kv_heads


def right_bytes(layers, width, heads, kv_heads, sequences, tokens, number_bytes) -> int:
    return 2 * layers * kv_heads * (width // heads) * sequences * tokens * number_bytes


def judge(answer, *arguments):
    if not is_number(answer):
        raise NotRight(f"returned {answer!r}", "Return one number of bytes.")
    right = right_bytes(*arguments)
    if answer != right:
        finding = f"you said {answer:,.15g} bytes; the cache has {right:,}"
        raise NotRight(finding, hint(answer, right, *arguments))


def hint(said, right, layers, width, heads, kv_heads, sequences, tokens, number_bytes) -> str:
    """Which common mistake gives this number?"""
    if not right:
        return "How many tokens are in this cache?"
    slips = (
        (1 / 2, "Each token leaves a key, and what else?"),
        (1 / layers, "Each layer keeps keys and values of its own."),
        (heads / kv_heads, "Queries are not kept: count the heads of keys and values."),
        (1 / kv_heads, "Each head of keys and values keeps its own."),
        (heads, "A head is not as wide as the model."),
        (heads / width, "A key has as many numbers as a head is wide."),
        (1 / sequences, "Each sequence of the batch has a cache of its own."),
        (1 / tokens, "Every token of a sequence is kept, not only the last one."),
        (tokens, "Keys and values grow with the tokens, the matrix of scores with their square."),
        (8, "Return bytes, not bits."),
        (1 / number_bytes, "That counts numbers: how many bytes has each?"),
        (2 / number_bytes, "How many bytes has a number here?"),
        (4 / number_bytes, "How many bytes has a number here?"),
        (1 / 2**30, "Return bytes, not GiB."),
        (1e-9, "Return bytes, not gigabytes."),
        (1 + heads / kv_heads / 2, "Queries are not kept: later tokens do not need them."),
    )
    for factor, words in slips:
        if factor != 1 and abs(said / right / factor - 1) < 1e-9:
            return words
    return "Per token: how many layers, how many heads of keys and values, how wide is each?"

"""Exercise of week 10: bytes that a hybrid of Mamba-2 and attention keeps for its sequences."""

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict

# Words; layers, attention, kv_heads, head_width, channels, state, groups, seen, sequences, tokens,
# bytes of a number. Factors differ, so that one that is missing shows.
CASES = (
    ("8 blocks, 3 with attention, 7 sequences of 11 tokens in fp32",
     (8, 3, 5, 6, 24, 10, 3, 4, 7, 11, 4)),
    ("Bamba-9B, one sequence of 4,096 tokens in bf16",
     (32, 3, 8, 128, 8192, 128, 1, 4, 1, 4096, 2)),
    ("Bamba-9B, 16 sequences of 262,144 tokens in bf16",
     (32, 3, 8, 128, 8192, 128, 1, 4, 16, 262_144, 2)),
    ("attention in no block", (5, 0, 4, 16, 96, 13, 1, 3, 2, 100, 2)),
    ("attention in every block", (5, 5, 4, 16, 96, 13, 1, 3, 2, 100, 2)),
    ("sequences without a token", (6, 1, 4, 16, 96, 13, 1, 3, 2, 0, 2)),
)  # fmt: skip


def hybrid_bytes(fn) -> Verdict:
    """Check `fn(layers, attention, kv_heads, head_width, channels, state, groups, seen, …)`.

    The last arguments are sequences, tokens, number_bytes. It returns (bytes of all states, bytes
    of keys and values). `attention` of the `layers` blocks have attention, the others Mamba-2,
    whose convolution sees `seen` tokens.
    """
    cases = [(where, arguments, {}) for where, arguments in (*CASES, *hidden.more(drawn))]
    return examine_here("hybrid_bytes", fn, cases, judge)


def drawn(random):
    layers = random.randint(2, 99)
    sizes = (random.randint(1, 99) for _ in range(5))  # kv_heads … groups
    more = (random.randint(2, 5), random.randint(1, 99), random.randint(1, 999))
    return "another model", (layers, random.randint(0, layers), *sizes, *more, 2)


def right_bytes(layers, attention, kv_heads, head_width, channels, state, groups, seen,
                sequences, tokens, number_bytes) -> tuple[int, int]:  # fmt: skip
    inputs = (seen - 1) * (channels + 2 * groups * state)
    states = (layers - attention) * (channels * state + inputs)
    keys = attention * 2 * kv_heads * head_width * tokens
    return states * sequences * number_bytes, keys * sequences * number_bytes


def judge(answer, *arguments):
    if not isinstance(answer, tuple | list) or len(answer) != 2 or not all(map(is_number, answer)):
        raise NotRight(
            f"returned {answer!r}", "Return two numbers of bytes: the states', then the cache's."
        )
    right = right_bytes(*arguments)
    if tuple(answer) == right[::-1] != right:
        raise NotRight(f"returned {answer!r}", "Return the states' bytes first, then the cache's.")
    for name, said, wanted, find in zip(
        ("states", "keys and values"), answer, right, (hint_states, hint_keys), strict=True
    ):
        if said != wanted:
            finding = f"{name}: you said {said:,.15g} bytes; the model keeps {wanted:,}"
            raise NotRight(finding, shared_hint(said, wanted, *arguments) or find(said, *arguments))


def shared_hint(said, right, *arguments) -> str:
    """Which mistake that both counts may have gives this number?"""
    sequences, _, number_bytes = arguments[-3:]
    for factor, words in (
        (1 / sequences, "Each sequence of the batch has a state and a cache of its own."),
        (1 / number_bytes, "That counts numbers: how many bytes has each?"),
        (4 / number_bytes, "How many bytes has a number here?"),
        (8, "Return bytes, not bits."),
        (1 / 2**20, "Return bytes, not MiB."),
        (1 / 2**30, "Return bytes, not GiB."),
    ):
        if right and factor != 1 and abs(said / right / factor - 1) < 1e-9:
            return words
    return ""


def hint_states(said, layers, attention, kv_heads, head_width, channels, state, groups, seen,
                sequences, tokens, number_bytes) -> str:  # fmt: skip
    each = sequences * number_bytes
    blocks, matrix = layers - attention, channels * state
    inputs, shared = (seen - 1) * (channels + 2 * groups * state), 2 * groups * state
    slips = (
        (layers * (matrix + inputs), "Blocks with attention keep no state."),
        (matrix + inputs, "Each Mamba-2 block keeps a state of its own."),
        (blocks * matrix, "What does the convolution need of the tokens before?"),
        (
            blocks * (matrix + seen * (channels + shared)),
            "The convolution sees the token itself too: how many before it must be kept?",
        ),
        (blocks * (matrix + (seen - 1) * channels), "B and C pass through a convolution too."),
        (
            blocks * (matrix + (seen - 1) * (channels + shared // 2)),
            "B and C pass through a convolution each.",
        ),
        (
            blocks * (matrix + (seen - 1) * (channels + 2 * state)),
            "Each group has a B and a C of its own.",
        ),
        (blocks * inputs, "That is what the convolution keeps. And the state itself?"),
        (blocks * (matrix + inputs) * tokens, "The state does not grow: it replaces the tokens."),
        (
            blocks * (matrix * groups + inputs),
            "Groups share B and C, but each channel has one row of state.",
        ),
    )
    for numbers, words in slips:
        if said == numbers * each:
            return words
    return (
        "Per Mamba-2 block: `state` numbers for each channel; and, for each channel that is "
        "convolved, the inputs before the next token."
    )


def hint_keys(said, layers, attention, kv_heads, head_width, channels, state, groups, seen,
              sequences, tokens, number_bytes) -> str:  # fmt: skip
    each = sequences * number_bytes
    keys = 2 * kv_heads * head_width * tokens
    slips = (
        (layers * keys, "Only blocks with attention keep keys and values."),
        ((layers - attention) * keys, "Which blocks keep keys and values?"),
        (keys, "Each block with attention keeps keys and values of its own."),
        (attention * keys // 2, "Each token leaves a key, and what else?"),
        (attention * 2 * head_width * tokens, "Each head keeps keys and values of its own."),
        (attention * 2 * kv_heads * tokens, "A key has as many numbers as a head is wide."),
        (attention * 2 * kv_heads * head_width, "Every token is kept, not only the last one."),
    )
    for numbers, words in slips:
        if said == numbers * each:
            return words
    return "Per token and block with attention: a key and a value for each key/value head."

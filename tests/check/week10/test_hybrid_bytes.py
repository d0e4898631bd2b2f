"""Bytes of a hybrid: the solution passes; each common mistake gets its own hint."""

import math
import random

import pytest
import torch

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week10 import hybrid_bytes as exercise
from helpers.check.week10.hybrid_bytes import CASES, right_bytes
from helpers.models.bamba import bamba
from helpers.models.caches.preallocated import Preallocated
from helpers.models.gpt import kept_by
from helpers.models.settings import Mamba2Settings
from notebooks.solutions import week10
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew

NAMES = ("layers", "attention", "kv_heads", "head_width", "channels", "state", "groups", "seen",
         "sequences", "tokens", "number_bytes")  # fmt: skip


def changed(states=lambda bytes, n: bytes, keys=lambda bytes, n: bytes, **others):
    """The solution with a mistake in one count, or with other arguments."""

    def solve(*arguments):
        named = dict(zip(NAMES, arguments, strict=True))
        given = named | {name: change(named) for name, change in others.items()}
        first, second = week10.hybrid_bytes(**given)
        return states(first, named), keys(second, named)

    return solve


def test_the_solution_passes():
    verdict = check.hybrid_bytes(week10.hybrid_bytes)
    assert verdict, verdict


def test_one_byte_more_is_wrong():
    more = {"states": lambda found, n: found + 1}, {"keys": lambda found, n: found + (found > 0)}
    for change in more:
        assert not check.hybrid_bytes(changed(**change))


def test_the_stub_is_told_apart():
    def stub(layers, attention, kv_heads, head_width, channels, state, groups, seen,
             sequences, tokens, number_bytes):  # fmt: skip
        raise NotImplementedError

    assert check.hybrid_bytes(stub).status == "not written yet"


def test_the_formula_is_the_bytes_of_a_real_cache():
    sizes = Mamba2Settings(state=10, head=4, groups=2, convolution=3)
    config = bamba(5, [1, 4], width=24, heads=4, kv_heads=2, hidden=8, vocab=5, context=16,
                   rotary_share=1.0, mamba2=sizes)  # fmt: skip
    cache = Preallocated(kept_by(config.build(device="meta")), 3, 7, torch.float16)
    assert sum(right_bytes(5, 2, 2, 6, 48, 10, 2, 3, 3, 7, 2)) == cache.bytes


def test_bamba_9b_is_among_the_cases():
    config = bamba()
    sizes = (32, 3, config.key_heads, config.head_width, config.mamba2.channels(config.width))
    sizes += (config.mamba2.state, config.mamba2.groups, config.mamba2.convolution)
    assert sum(case[1][:8] == sizes for case in CASES) == 2


def a_block(n):
    return n["sequences"] * n["number_bytes"]


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (changed(lambda b, n: b * n["layers"] // (n["layers"] - n["attention"])), "keep no state"),
        (changed(lambda b, n: b // (n["layers"] - n["attention"])), "a state of its own"),
        (changed(lambda b, n: b, seen=lambda n: 1), "What does the convolution need"),
        (changed(seen=lambda n: n["seen"] + 1), "how many before it must be kept"),
        (
            changed(lambda b, n: (n["layers"] - n["attention"]) * a_block(n) * n["channels"]
                    * (n["state"] + n["seen"] - 1)),
            "B and C pass through a convolution too",
        ),
        (
            changed(lambda b, n: b - (n["layers"] - n["attention"]) * a_block(n)
                    * (n["seen"] - 1) * n["groups"] * n["state"]),
            "a convolution each",
        ),
        (changed(groups=lambda n: 1), "Each group has a B and a C"),
        (
            changed(lambda b, n: b - (n["layers"] - n["attention"]) * a_block(n)
                    * n["channels"] * n["state"]),
            "And the state itself",
        ),
        (changed(lambda b, n: b * n["tokens"]), "The state does not grow"),
        (
            changed(lambda b, n: b + (n["layers"] - n["attention"]) * a_block(n)
                    * n["channels"] * n["state"] * (n["groups"] - 1)),
            "Groups share B and C",
        ),
        (changed(lambda b, n: b + 1), "Per Mamba-2 block"),
        (changed(lambda b, n: math.nan), "Per Mamba-2 block"),
        (changed(keys=lambda b, n: b * n["layers"] // n["attention"]), "Only blocks with"),
        (
            changed(keys=lambda b, n: b * (n["layers"] - n["attention"]) // n["attention"]),
            "Which blocks keep",
        ),
        (changed(keys=lambda b, n: b // n["attention"]), "keys and values of its own"),
        (changed(keys=lambda b, n: b / 2 - 1), "a key and a value for each"),
        (changed(kv_heads=lambda n: 1), "Each head keeps"),
        (changed(head_width=lambda n: 1), "as a head is wide"),
        (changed(tokens=lambda n: 1), "Every token is kept"),
        (changed(keys=lambda b, n: b + 1), "Per token and block"),
        (changed(sequences=lambda n: 1), "Each sequence of the batch"),
        (changed(number_bytes=lambda n: 1), "counts numbers"),
        (changed(lambda b, n: 8 * b, lambda b, n: 8 * b), "not bits"),
        (changed(lambda b, n: b / 2**20), "not MiB"),
        (changed(lambda b, n: b / 2**30), "not GiB"),
        (lambda *a: week10.hybrid_bytes(*a)[::-1], "first, then the cache"),
        (lambda *a: sum(week10.hybrid_bytes(*a)), "Return two numbers"),
        (lambda *a: None, "Return two numbers"),
        (lambda *a: ("1", True), "Return two numbers"),
    ],
)  # fmt: skip
def test_each_mistake_is_told(mistake, hint):
    verdict = check.hybrid_bytes(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_half_of_the_keys():
    verdict = check.hybrid_bytes(changed(keys=lambda b, n: b // 2))
    assert "a key, and what else" in verdict.hint


def test_exact_floats_are_fine():
    assert check.hybrid_bytes(lambda *a: [float(b) for b in week10.hybrid_bytes(*a)])


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.hybrid_bytes, week10.hybrid_bytes))


def test_a_mistake_in_one_case_alone_is_found():
    wheres = [
        "8 blocks, 3 with attention, 7 sequences of 11 tokens in fp32",
        "Bamba-9B, one sequence of 4,096 tokens in bf16",
        "Bamba-9B, 16 sequences of 262,144 tokens in bf16",
        "attention in no block", "attention in every block", "sequences without a token",
    ]  # fmt: skip
    kept = {
        "states": (0, [68_880, 62_287_360, 996_597_760, 29_840, 0, 29_840]),
        "keys and values": (1, [55_440, 50_331_648, 51_539_607_552, 0, 256_000, 0]),
    }
    for name, (place, sizes) in kept.items():
        wrong = changed(**{("states", "keys")[place]: lambda found, n: found + 1})
        found = found_alone(check.hybrid_bytes, week10.hybrid_bytes, wrong)
        assert found == [
            f"{where}: {name}: you said {size + 1:,} bytes; the model keeps {size:,}"
            for where, size in zip(wheres, sizes, strict=True)
        ]


def test_the_states_by_hand():
    """5 blocks of 24 × 10 numbers, and 3 inputs of 24 + 2 · 3 · 10 channels; 7 sequences."""
    assert right_bytes(8, 3, 5, 6, 24, 10, 3, 4, 7, 11, 4) == (
        5 * (24 * 10 + 3 * (24 + 60)) * 7 * 4,
        3 * 2 * 5 * 6 * 11 * 7 * 4,
    )


MODEL = (9, 4, 3, 11, 26, 10, 3, 6, 13, 17, 5)  # all different, and 5 blocks with a state
EACH, MATRIX, INPUTS, SHARED = 13 * 5, 260, 5 * (26 + 60), 60


@pytest.mark.parametrize(
    ("numbers", "hint"),
    [
        (9 * (MATRIX + INPUTS), "keep no state"),
        (MATRIX + INPUTS, "a state of its own"),
        (5 * MATRIX, "What does the convolution need"),
        (5 * (MATRIX + 6 * 86), "how many before it"),
        (5 * (MATRIX + 5 * 26), "a convolution too"),
        (5 * (MATRIX + 5 * 56), "a convolution each"),
        (5 * (MATRIX + 5 * 46), "Each group has"),
        (5 * INPUTS, "And the state itself"),
        (5 * (MATRIX + INPUTS) * 17, "does not grow"),
        (5 * (3 * MATRIX + INPUTS), "one row of state"),
        (5 * (MATRIX + INPUTS) + 1, "Per Mamba-2 block"),
    ],
)
def test_the_hint_for_states(numbers, hint):
    assert hint in exercise.hint_states(numbers * EACH, *MODEL)


@pytest.mark.parametrize(
    ("numbers", "hint"),
    [
        (9 * 66 * 17, "Only blocks with attention"),
        (5 * 66 * 17, "Which blocks keep"),
        (66 * 17, "keys and values of its own"),
        (4 * 33 * 17, "a key, and what else"),
        (4 * 22 * 17, "Each head keeps"),
        (4 * 6 * 17, "as a head is wide"),
        (4 * 66, "not only the last one"),
        (4 * 66 * 17 + 1, "a key and a value for each"),
    ],
)
def test_the_hint_for_keys(numbers, hint):
    assert hint in exercise.hint_keys(numbers * EACH, *MODEL)


@pytest.mark.parametrize(
    ("factor", "hint"),
    [
        (1 / 13, "Each sequence"),
        (1 / 5, "That counts numbers"),
        (4 / 5, "How many bytes has a number"),
        (8, "not bits"),
        (1 / 2**20, "not MiB"),
        (1 / 2**30, "not GiB"),
    ],
)
def test_the_hint_for_both_counts(factor, hint):
    right = 6 * 10**12
    assert hint in exercise.shared_hint(right * factor, right, *MODEL)
    assert exercise.shared_hint(right * factor * (1 + 1e-8), right, *MODEL) == ""
    assert exercise.shared_hint(1, 0, *MODEL) == ""
    one = (*MODEL[:-3], 1, 17, 4)
    assert exercise.shared_hint(right, right, *one) == ""


def test_equal_numbers_are_in_the_right_order():
    """No sequence: neither states nor keys have a byte."""
    exercise.judge((0, 0), *MODEL[:8], 0, 17, 5)
    for answer in ((1,), (1, None), (None, 1), (True, 1), (1, 2, 3)):
        with pytest.raises(NotRight) as wrong:
            exercise.judge(answer, *MODEL)
        assert wrong.value.finding == f"returned {answer!r}"


def test_grading_draws_models_that_can_be():
    models = [exercise.drawn(random.Random(secret))[1] for secret in range(60)]
    assert all(0 <= attention <= layers for layers, attention, *_ in models)
    assert {model[7] for model in models} == {2, 3, 4, 5}
    assert {len(model) for model in models} == {11}

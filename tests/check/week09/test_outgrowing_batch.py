"""The outgrowing batch: the solution passes; each common mistake gets its own hint."""

import math

import pytest

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.week09 import outgrowing_batch as exercise
from helpers.check.week09.outgrowing_batch import CASES, right_batch
from notebooks.solutions import week09
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew


def formula(params=True, cache=None, to=lambda x: math.floor(x) + 1):
    """The solution with a wrong part: `params` and `cache` change the two numbers of bytes."""

    def solve(p, param_bytes, layers, width, heads, kv_heads, tokens, number_bytes):
        sequence = 2 * layers * kv_heads * (width // heads) * tokens * number_bytes
        given = {"heads": heads, "kv_heads": kv_heads, "layers": layers, "tokens": tokens}
        given |= {"number_bytes": number_bytes, "param_bytes": param_bytes}
        top = p * param_bytes if params is True else params(p, given)
        bottom = sequence if cache is None else cache(sequence, given)
        return to(top / bottom)

    return solve


def test_the_solution_passes():
    verdict = check.outgrowing_batch(week09.outgrowing_batch)
    assert verdict, verdict
    assert check.outgrowing_batch(formula())


def test_the_answer_is_the_first_batch_with_more_bytes():
    for _, arguments in CASES:
        params, param_bytes, *shape, tokens, number_bytes = arguments
        batch = right_batch(*arguments)
        few, enough = (
            week09.cache_bytes(*shape, n, tokens, number_bytes) for n in (batch - 1, batch)
        )
        assert few <= params * param_bytes < enough


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (formula(to=math.floor), "the weights still have more"),
        (formula(to=math.ceil), "both have the same bytes"),
        (formula(to=lambda x: x), "Sequences are whole"),
        (formula(to=lambda x: math.nan), "Sequences are whole"),
        (formula(to=lambda x: math.inf), "Sequences are whole"),
        (formula(cache=lambda b, n: b / 2), "a key, and what else"),
        (formula(cache=lambda b, n: b * n["heads"] / n["kv_heads"]), "Queries are not kept"),
        (formula(cache=lambda b, n: b / n["layers"]), "Each layer"),
        (formula(cache=lambda b, n: b / n["tokens"]), "all its tokens"),
        (formula(cache=lambda b, n: b / n["number_bytes"]), "has a number of the cache"),
        (formula(params=lambda p, n: p), "more than one byte"),
        # the same size for both, whichever it is
        (formula(cache=lambda b, n: b * n["param_bytes"] / n["number_bytes"]), "its own bytes"),
        (
            formula(params=lambda p, n: p, cache=lambda b, n: b / n["number_bytes"]),
            "its own bytes",
        ),
        (formula(params=lambda p, n: p * n["number_bytes"]), "its own bytes"),
        (formula(to=lambda x: math.floor(x) + 3), "A smaller batch is enough"),
        (formula(to=lambda x: 0), "What does a sequence keep"),
        (formula(to=lambda x: None), "a number of sequences"),
        (formula(to=lambda x: False), "a number of sequences"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    verdict = check.outgrowing_batch(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_a_stub_is_told_apart():
    def stub(params, param_bytes, layers, width, heads, kv_heads, tokens, number_bytes):
        raise NotImplementedError

    assert check.outgrowing_batch(stub).status == "not written yet"


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.outgrowing_batch, week09.outgrowing_batch))


def test_a_mistake_in_one_case_alone_is_found():
    """The batch is the number of whole sequences in the weights, and one more."""
    more = formula(to=lambda x: math.floor(x) + 2)
    assert found_alone(check.outgrowing_batch, week09.outgrowing_batch, more) == [
        "a million parameters in fp32, 11 tokens: you said 272; it is 271",
        "Llama 2 7B in bf16, 4,096 tokens: you said 8; it is 7",
        "Llama 2 70B in bf16, 4,096 tokens: you said 104; it is 103",
        "Llama 2 7B in int8, its cache in bf16: you said 5; it is 4",
        "Llama 2 7B in bf16, its cache in int8: you said 14; it is 13",
        "a batch of 10 has exactly the bytes of the weights: you said 12; it is 11",
        "a small model, long sequences: you said 2; it is 1",
    ]
    with drawn_from(2):
        found = found_alone(check.outgrowing_batch, week09.outgrowing_batch, more)
    assert [one.split(": ")[0] for one in found[7:]] == ["another model"] * 3


# 10^6 parameters of 3 bytes; a sequence has 2 · 5 · 2 · 4 · 7 · 2 = 1120 bytes
MODEL = (1_000_000, 3, 5, 32, 8, 2, 7, 2)
EACH = 1120


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (2679.5, "Sequences are whole"),
        (2678, "have more bytes."),
        (2_000_000 // EACH, "its own bytes"),
        (2_000_000 // EACH + 1, "its own bytes"),
        (3_000_000 // (EACH // 2), "a key, and what else"),
        (3_000_000 // (EACH // 2) + 1, "a key, and what else"),
        (3_000_000 // (EACH * 4), "Queries are not kept"),
        (3_000_000 // (EACH // 5), "Each layer"),
        (3_000_000 // (EACH // 7), "all its tokens"),
        (1_000_000 // EACH, "more than one byte"),
        (2680, "A smaller batch is enough"),
        (2677, "What does a sequence keep"),
    ],
)
def test_the_hint_for_a_batch(said, hint):
    right = right_batch(*MODEL)
    assert right == 2679
    assert hint in exercise.hint(said, right, *MODEL)


def test_the_hint_for_a_batch_of_as_many_bytes():
    assert "both have the same bytes" in exercise.hint(10, 11, *CASES[5][1])


def test_the_bytes_of_each_case():
    """Of the weights, and of one sequence: half a MiB a token for Llama 2 7B in 16 bits."""
    found = [
        (params * param_bytes, week09.cache_bytes(*shape, 1, tokens, number_bytes), tokens)
        for _, (params, param_bytes, *shape, tokens, number_bytes) in CASES
    ]
    assert found == [
        (4_000_012, 14_784, 11),
        (13_476_831_232, 2**31, 4096),
        (137_953_296_384, 5 * 2**28, 4096),
        (6_738_415_616, 2**31, 4096),
        (13_476_831_232, 2**30, 4096),
        (38_400, 3840, 20),
        (2000, 384_000, 2000),
    ]

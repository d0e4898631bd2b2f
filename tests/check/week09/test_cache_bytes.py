"""Bytes of a cache: the solution passes; each common mistake gets its own hint."""

import math
import random

import pytest
import torch

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.week09 import cache_bytes as exercise
from helpers.check.week09.cache_bytes import drawn_model, right_bytes
from helpers.models.caches.preallocated import Preallocated
from helpers.models.config import GPTConfig
from helpers.models.gpt import kept_by
from notebooks.solutions import week09
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew


def changed(change):
    def solve(layers, width, heads, kv_heads, sequences, tokens, number_bytes):
        names = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads}
        names |= {"sequences": sequences, "tokens": tokens, "number_bytes": number_bytes}
        return change(week09.cache_bytes(**names), names)

    return solve


def test_the_solution_passes():
    verdict = check.cache_bytes(week09.cache_bytes)
    assert verdict, verdict


def test_one_byte_more_is_wrong():
    assert not check.cache_bytes(changed(lambda found, names: found + (found > 0)))


def test_the_formula_is_the_bytes_of_a_real_cache():
    for heads, kv_heads in ((6, 2), (4, 4), (12, 1)):
        config = GPTConfig(width=48, layers=3, heads=heads, kv_heads=kv_heads)
        kept = kept_by(config.build(device="meta"))
        cache = Preallocated(kept, 5, 7, torch.float16)
        assert right_bytes(3, 48, heads, kv_heads, 5, 7, 2) == cache.bytes


def test_a_published_cache():
    # Llama 2 7B keeps half a MiB of bf16 per token: 2 · 32 layers · 4096 · 2 bytes
    assert week09.cache_bytes(32, 4096, 32, 32, 1, 1, 2) == 2**19


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (changed(lambda b, n: b // 2), "a key, and what else"),
        (changed(lambda b, n: b // n["layers"]), "Each layer"),
        (changed(lambda b, n: b * n["heads"] // n["kv_heads"]), "Queries are not kept: count"),
        (changed(lambda b, n: b // n["kv_heads"]), "Each head of keys and values"),
        (changed(lambda b, n: b * n["heads"]), "not as wide as the model"),
        (changed(lambda b, n: b * n["heads"] // n["width"]), "as a head is wide"),
        (changed(lambda b, n: b // n["sequences"]), "Each sequence of the batch"),
        (changed(lambda b, n: b // max(n["tokens"], 1)), "Every token of a sequence"),
        (changed(lambda b, n: b * n["tokens"]), "with their square"),
        (changed(lambda b, n: 8 * b), "not bits"),
        (changed(lambda b, n: b // n["number_bytes"]), "counts numbers"),
        (changed(lambda b, n: b * 4 // n["number_bytes"]), "How many bytes has a number"),
        (changed(lambda b, n: b / 2**30), "not GiB"),
        (changed(lambda b, n: b / 1e9), "not gigabytes"),
        (
            changed(lambda b, n: b * (2 * n["kv_heads"] + n["heads"]) / (2 * n["kv_heads"])),
            "later tokens do not need them",
        ),
        (changed(lambda b, n: b + 1), "how wide is each"),
        (changed(lambda b, n: b or 64), "How many tokens"),
        (changed(lambda b, n: -b), "how wide is each"),
        (changed(lambda b, n: math.nan), "how wide is each"),
        (changed(lambda b, n: math.inf), "how wide is each"),
        (changed(lambda b, n: None), "one number of bytes"),
        (changed(lambda b, n: True), "one number of bytes"),
        (changed(lambda b, n: str(b)), "one number of bytes"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    verdict = check.cache_bytes(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_a_stub_is_told_apart():
    def stub(layers, width, heads, kv_heads, sequences, tokens, number_bytes):
        raise NotImplementedError

    assert check.cache_bytes(stub).status == "not written yet"


def test_an_exact_float_is_fine():
    assert check.cache_bytes(changed(lambda b, n: float(b)))


def test_models_that_grading_draws_differ_and_can_be():
    drawn = {drawn_model(random.Random(secret)) for secret in range(50)}
    assert len(drawn) > 40
    for _, width, heads, kv_heads in drawn:
        assert width % heads == heads % kv_heads == 0


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.cache_bytes, week09.cache_bytes))


def test_a_mistake_in_one_case_alone_is_found():
    found = found_alone(check.cache_bytes, week09.cache_bytes, changed(lambda b, n: b - 1))
    assert found == [
        "7 layers, 12 and 3 heads, 11 sequences of 5 tokens in fp32: you said 73,919 bytes; "
        "the cache has 73,920",
        "Llama 2 7B, one sequence of 4,096 tokens in bf16: you said 2,147,483,647 bytes; "
        "the cache has 2,147,483,648",
        "Llama 2 70B, 8 sequences of 4,096 tokens in bf16: you said 10,737,418,239 bytes; "
        "the cache has 10,737,418,240",
        "Llama 3 405B, 16 sequences of 8,192 tokens in int8: you said 33,822,867,455 bytes; "
        "the cache has 33,822,867,456",
        "an empty cache: you said -1 bytes; the cache has 0",
    ]
    with drawn_from(2):
        found = found_alone(check.cache_bytes, week09.cache_bytes, changed(lambda b, n: b - 1))
    assert [one.split(": ")[0] for one in found[5:]] == ["another model"] * 3


# layers, width, heads, kv_heads, sequences, tokens, bytes of a number: all different
MODEL = (7, 90, 18, 3, 11, 13, 5)
BYTES = 2 * 7 * 3 * 5 * 11 * 13 * 5


@pytest.mark.parametrize(
    ("factor", "hint"),
    [
        (1 / 2, "a key, and what else"),
        (1 / 7, "Each layer"),
        (6, "Queries are not kept: count"),
        (1 / 3, "Each head of keys"),
        (18, "not as wide as the model"),
        (1 / 5, "as a head is wide"),
        (1 / 11, "Each sequence"),
        (1 / 13, "not only the last one"),
        (13, "with their square"),
        (8, "not bits"),
        (2 / 5, "How many bytes has a number here"),
        (4 / 5, "How many bytes has a number here"),
        (1 / 2**30, "not GiB"),
        (1e-9, "not gigabytes"),
        (1 + 6 / 2, "later tokens do not need them"),
        (3, "how wide is each"),
        (1 / 2 + 1e-8, "how wide is each"),
    ],
)
def test_the_hint_for_a_factor(factor, hint):
    assert hint in exercise.hint(BYTES * factor, BYTES, *MODEL)
    assert right_bytes(*MODEL) == BYTES


def test_the_hint_where_a_factor_is_one():
    assert "how wide is each" in exercise.hint(40.5, 40, 1, 8, 2, 1, 1, 1, 1)
    assert "How many tokens" in exercise.hint(5, 0, *MODEL)

"""Bytes of a cache: the solution passes; each common mistake gets its own hint."""

import math
import random

import pytest
import torch

from helpers import check
from helpers.check.week09.cache_bytes import drawn_model, right_bytes
from helpers.models.caches.preallocated import Preallocated
from helpers.models.config import GPTConfig
from helpers.models.gpt import kept_by
from notebooks.solutions import week09
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

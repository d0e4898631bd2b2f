"""Bytes of a hybrid: the solution passes; each common mistake gets its own hint."""

import math

import pytest
import torch

from helpers import check
from helpers.check.week10.hybrid_bytes import CASES, right_bytes
from helpers.models.bamba import bamba
from helpers.models.caches.preallocated import Preallocated
from helpers.models.gpt import kept_by
from helpers.models.ssm_settings import Mamba2Settings
from notebooks.solutions import week10
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

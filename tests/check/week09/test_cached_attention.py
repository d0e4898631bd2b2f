"""Attention with a cache: the solution passes; each common mistake gets its own hint."""

import math

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.week09.cached_attention import HINTS, call_all, right, rotate
from notebooks.solutions.week09 import cached_attention
from tests.check.asked import asked, drawn_anew
from tests.check.week09.edited import edited

READ = "k.mT / "
WRITE_K = 'cache["keys"] = k = torch.cat([cache["keys"], k], dim=2)'
WRITE_V = 'cache["values"] = v = torch.cat([cache["values"], v], dim=2)'
KEEP = 'k0, v0 = k, v; k, v = cache["keys"], cache["values"]'
LATER = 'cache["keys"], cache["values"] = torch.cat([k, k0], 2), torch.cat([v, v0], 2)'
AGAIN = "rotate(k, torch.arange(start + tokens))"


def test_the_solution_passes():
    verdict = check.cached_attention(cached_attention)
    assert verdict, verdict
    assert check.cached_attention(right())


def test_digits_of_float32_are_too_few():
    verdict = check.cached_attention(lambda *given: cached_attention(*given) + 1e-7)
    assert verdict.status == "wrong"


@pytest.mark.parametrize("mistake", HINTS)
def test_each_mistake_is_told(mistake):
    verdict = check.cached_attention(right(mistake))
    assert verdict.status == "wrong"
    assert verdict.hint == HINTS[mistake]


@pytest.mark.parametrize(
    ("edits", "mistake"),
    [
        ([("torch.arange(start, start + tokens)", "torch.arange(tokens)")], "restart"),
        ([("tril(start)", "tril(start - 1)")], "sees one less"),
        ([("tril(start)", "tril(start + 1)")], "sees one more"),
        ([("tril(start)", "tril()")], "mask from the left"),
        ([("tril(start)", "bool()")], "no mask"),
        (
            [(WRITE_K, KEEP), (WRITE_V, LATER), ("start + tokens, dtype", "start, dtype")],
            "read first",
        ),
        ([(READ, AGAIN + ".mT / ")], "twice"),
        ([(WRITE_K, WRITE_K + "; k = cache['keys'] = " + AGAIN)], "twice, kept"),
        ([('cache["keys"] = k =', "k ="), ('cache["values"] = v =', "v =")], "never written"),
        ([("** 0.5", "** 0")], "unscaled"),
        ([("q.shape[-1]", "x.shape[-1]")], "scaled by D"),
        ([("y.transpose(1, 2).flatten(2)", "y.reshape(x.shape)")], "heads mixed"),
        (
            [("q, k = rotate(q, places), rotate(k, places)", "k = rotate(k, places)")],
            "queries plain",
        ),
    ],
    ids=str,
)
def test_a_solution_with_one_mistake(edits, mistake):
    verdict = check.cached_attention(edited(cached_attention, *edits))
    assert verdict.status == "wrong"
    assert verdict.hint == HINTS[mistake], verdict


def test_keys_may_be_kept_plain_and_rotated_when_read():
    late = edited(
        cached_attention,
        ("q, k = rotate(q, places), rotate(k, places)", "q = rotate(q, places)"),
        (READ, AGAIN + ".mT / "),
    )
    assert check.cached_attention(late)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x, *_: None, "Return a tensor"),
        (lambda x, *_: x[:, :1], "one row of D numbers for each new token"),
        (lambda x, *_: x, "Compare line by line"),
        (lambda x, *_: x * float("nan"), "Compare line by line"),
        (lambda x, *_: torch.full(x.shape, 2), "Compare line by line"),
    ],
)
def test_nasty_answers(answer, words):
    verdict = check.cached_attention(answer)
    assert verdict.status == "wrong"
    assert words in verdict.hint, verdict


def test_the_stub_and_an_error():
    def stub(*_):
        raise NotImplementedError

    def failing(x, *_):
        return x.no_such_method()

    assert check.cached_attention(stub).status == "not written yet"
    verdict = check.cached_attention(failing)
    assert verdict.status == "wrong"
    assert "no_such_method" in verdict.finding


def test_the_weights_are_not_the_student_s_to_change():
    def solve(x, weights, *given):
        y = cached_attention(x, weights, *given)
        for weight in weights.values():
            weight.zero_()
        return y

    assert check.cached_attention(solve)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.cached_attention, cached_attention))


@pytest.mark.parametrize(("number", "tokens"), [(1, 3), (2, 1), (3, 2), (4, 1)])
def test_a_mistake_in_one_call_alone_is_found(number, tokens):
    """In one number of the last token: off by 2e-9 is wrong, rounding is right."""

    def off(by):
        calls = []

        def solve(x, *given):
            y = cached_attention(x, *given)
            calls.append(x.shape[1])
            if len(calls) == number:
                y[-1, -1, -1] += by
            assert calls[-1] == [3, 1, 2, 1][len(calls) - 1]
            return y

        return solve

    assert check.cached_attention(off(1e-10))
    for by in (2e-9, -2e-9):
        verdict = check.cached_attention(off(by))
        words = "a prompt of 3 tokens, then 1, 2 and 1 more"
        assert verdict.finding == f"{words}: call {number} of 4 is off by up to 2e-09"
    verdict = check.cached_attention(off(float("nan")))
    assert verdict.finding.endswith(f"call {number} of 4 has numbers that are not finite")


def test_what_the_function_is_given():
    seen = []

    def solve(x, weights, heads, cache, rotate):
        seen.append((tuple(x.shape), tuple(cache["keys"].shape), tuple(cache["values"].shape)))
        assert heads == 3
        assert {name: tuple(w.shape) for name, w in weights.items()} == dict.fromkeys(
            ("query", "key", "value", "out"), (12, 12)
        )
        return cached_attention(x, weights, heads, cache, rotate)

    assert check.cached_attention(solve)
    assert seen == [
        ((2, t, 12), (2, 3, s, 4), (2, 3, s, 4)) for t, s in ((3, 0), (1, 3), (2, 4), (1, 6))
    ]


def test_the_rotation_by_hand():
    """Pairs (i, i + d/2) turn by place · 100^(-2 i / d), the first pair by the place itself."""
    t = torch.tensor([[[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]]], dtype=torch.float64)
    found = rotate(t, torch.tensor([2, 5]))[0, 0]
    torch.testing.assert_close(
        found,
        torch.tensor([[math.cos(2), 0, math.sin(2), 0], [0, math.cos(0.5), 0, math.sin(0.5)]],
                     dtype=torch.float64),
        rtol=0, atol=1e-6,
    )  # fmt: skip


def test_the_reference_is_torch_s_own_attention():
    """On all tokens at once, with a causal mask, against the reference by chunks."""
    ((xs, weights),) = asked_for()
    whole = torch.cat(xs, 1)
    places = torch.arange(7)
    q, k, v = (
        (whole @ weights[name]).unflatten(-1, (3, 4)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    y = torch.nn.functional.scaled_dot_product_attention(
        rotate(q, places), rotate(k, places), v, is_causal=True
    )
    y = y.transpose(1, 2).flatten(2) @ weights["out"]
    found = torch.cat(call_all(right(), xs, weights), 1)
    torch.testing.assert_close(found, y, rtol=0, atol=1e-12)
    assert len({w.sum().item() for w in weights.values()}) == 4


def asked_for():
    kept = []

    class Listening(elsewhere.Here):
        def call(self, fn, arguments):
            kept.append(arguments)
            return super().call(fn, arguments)

    with elsewhere.at(Listening()):
        assert check.cached_attention(cached_attention)
    return kept

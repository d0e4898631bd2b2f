"""Mistakes that stand in no table: an argument, a choice or the ranks explain them."""

from fractions import Fraction

import pytest
import torch

from helpers.check import week10, week12b
from helpers.check.ranks import RELATIONS
from helpers.check.week04.block import activation_bytes, message_bytes
from helpers.check.week06.amounts import bytes_per_rank
from helpers.check.week09.cache import cache_bytes, outgrowing_batch
from notebooks.solutions import week04, week09


def with_other(solution, **other):
    """The solution with a number, or another argument, in the place of an argument."""
    names = solution.__code__.co_varnames[: solution.__code__.co_argcount]

    def wrong(*given):
        known = dict(zip(names, given, strict=False))
        return solution(**known | {k: known.get(v, v) for k, v in other.items()})

    return wrong


sent = week04.message_bytes


@pytest.mark.parametrize(
    ("data", "answer", "hint"),
    [
        (outgrowing_batch, with_other(week09.outgrowing_batch, param_bytes=4),
         "`param_bytes` is 4"),
        (cache_bytes, with_other(week09.cache_bytes, number_bytes=2), "`number_bytes` is 2"),
        (cache_bytes, with_other(week09.cache_bytes, layers=1), "`layers` is 1"),
        (cache_bytes, with_other(week09.cache_bytes, sequences="heads"),
         "`heads` in the place of `sequences`"),
        (cache_bytes, lambda *given: 8 * week09.cache_bytes(*given), "not bits"),
        (cache_bytes, lambda *given: week09.cache_bytes(*given) / given[2] * given[1],
         "`width` is too much and a factor `heads` is missing"),
        (message_bytes, lambda *given: 7 * (given[0].recompute == "full") + sent(*given),
         "with recompute full alone"),
        (message_bytes, lambda *given: 7 * (given[4] == "sequence, again") + sent(*given),
         "with way sequence, again alone"),
        (message_bytes, with_other(sent, sequences="tokens"), "`tokens` in the place"),
        (message_bytes, lambda *given: sent(*given) / given[3], "a factor `ranks` is missing"),
        (activation_bytes,
         lambda *given: week04.activation_bytes(*given) * (given[0].recompute != "full"),
         "The bytes of block input are missing"),
    ],
)  # fmt: skip
def test_what_an_argument_or_a_choice_explains(data, answer, hint):
    verdict = data(answer)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


PARTS = list(torch.tensor([[1.0, 2.0], [3.0, 5.0], [8.0, 1.0]], dtype=torch.float64))
WHOLE = [sum(PARTS)] * 3


@pytest.mark.parametrize(
    ("given", "right", "hint"),
    [
        ([one / 3 for one in PARTS], PARTS, "divided by the number"),
        ([one * 3 for one in WHOLE], WHOLE, "multiplied by the number"),
        (PARTS, WHOLE, "this rank's part"),
        (PARTS, [sum(PARTS) / 3] * 3, "this rank's own"),
        (WHOLE, PARTS, "sum over the ranks, but"),
        ([sum(PARTS) / 3] * 3, PARTS, "mean over the ranks, but"),
        ([PARTS[0], *PARTS[:2]], PARTS, "Rank 0 alone"),
        ([PARTS[0]] * 3, PARTS, "Rank 0 alone"),
        ([2 * one for one in PARTS], PARTS, ""),
    ],
)
def test_what_the_ranks_explain(given, right, hint):
    found = [words for words, holds in RELATIONS if holds(given, right, 3, 1e-9)]
    assert hint in (found or [""])[0]
    assert bool(found) == bool(hint)


SEVERAL = (week10.ssm_step, week10.hybrid_bytes, week12b.route_with_bias)


@pytest.mark.parametrize("data", SEVERAL)
def test_several_values_have_an_order(data):
    for wrong in (lambda *given: data.right(*given)[::-1], lambda *given: data.right(*given)[0]):
        verdict = data(wrong)
        assert verdict.hint == data.form()
        assert all(name in verdict.hint for name in data.names)


def test_several_values_may_have_names():
    verdict = bytes_per_rank(lambda *given: {"parameters": 1, "gradients": 2})
    assert verdict.hint == "Return a dict with the keys 'parameters', 'gradients', 'optimizer'."
    eight = bytes_per_rank(
        lambda *given: {k: Fraction(8 * n) for k, n in bytes_per_rank.right(*given).items()}
    )
    assert eight.hint == "Return bytes, not bits."
    assert "said 120,000,000,000 bytes as parameters; it is 15,000,000,000" in eight.finding

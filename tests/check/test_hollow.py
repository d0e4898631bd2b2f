"""Answers that are no answers: no check passes them, and none of them ends a check."""

import math

import numpy as np
import pytest
import torch

from helpers import check
from tests.check.test_hidden import ALONE, solution

NAN = float("nan")
NOTHING = {
    "None": None,
    "nan": NAN,
    "infinity": math.inf,
    "a negative number": -1,
    "a huge number": 10**400,
    "True": True,
    "a word": "x",
    "an object": object(),
    "a function": len,
    "(nan, nan)": (NAN, NAN),
    "two huge numbers": (10**400, 10**400),
    "[[]]": [[]],
    "{}": {},
    "an empty tensor": torch.empty(0),
    "tensors of nan": (torch.full((1,), NAN), torch.full((1,), NAN)),
    "an empty array": np.empty(0),
    "complex": 1j,
}


@pytest.mark.parametrize("name", ALONE)
def test_nothing_is_no_answer(name):
    for what, answer in NOTHING.items():
        verdict = getattr(check, name)(lambda *_, answer=answer, **__: answer)
        assert verdict.status == "wrong", what
        assert verdict.finding, what
        assert "cannot compare" not in verdict.finding, verdict.finding
        assert verdict._repr_html_()


def changed(value, number, tensor):
    """The value, with every number in it and every tensor changed."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float | np.number):
        return number(value)
    if type(value) in (list, tuple):
        return type(value)(changed(one, number, tensor) for one in value)
    if isinstance(value, dict):
        return {key: changed(one, number, tensor) for key, one in value.items()}
    return value


SPOILT = {
    "nan": (lambda n: NAN, lambda t: t.double() * NAN),
    "of one more dim": (lambda n: [n], lambda t: t[None]),
    "empty": (lambda n: [], lambda t: t.flatten()[:0]),
    "complex": (lambda n: n + 1j, lambda t: t + 1j),
    "one number for all": (lambda n: 3 * n + 1, lambda t: t.flatten()[:1]),
}
# They write into their arguments, or answer with words: there is nothing to spoil.
WORDS = {"find_flaw", "master_adam", "block_allocator", "fuse_messages", "order_1f1b", "place_axes",
         "fused_update", "round_stochastically"}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in ALONE if name not in WORDS])
@pytest.mark.parametrize("what", SPOILT)
def test_a_right_answer_that_was_spoilt_is_wrong(name, what):
    right = solution(name)
    verdict = getattr(check, name)(lambda *given: changed(right(*given), *SPOILT[what]))
    assert verdict.status == "wrong"
    assert "cannot compare" not in verdict.finding, verdict.finding

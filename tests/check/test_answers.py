"""Answers that no check can compare are named, and shown in a short text."""

import numpy as np
import pytest
import torch

from helpers.check.answers import alike, in_a_line, oddity, same, short


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (1j, "a complex number"),
        (np.complex64(1), "a complex number"),
        ([1, (2, {"a": torch.zeros(2) + 1j})], "a tensor of complex numbers"),
        (np.ones(2) * 1j, "an array of complex numbers"),
        ({"bytes": -(10**400)}, "a whole number of more than 300 digits"),
        (10**301, "a whole number of more than 300 digits"),
        ([[[[1j]]]], "a complex number"),
        ([[], 0, {"a": "", "b": (None, 2j)}, 10**400], "a complex number"),
    ],
)
def test_what_is_odd(answer, what):
    assert oddity(answer) == what


@pytest.mark.parametrize(
    "answer",
    [None, 3, 10**299, 1e308, float("nan"), "1j", True, torch.ones(2), np.ones(2), [[1], {}], len],
)
def test_what_is_not(answer):
    assert oddity(answer) == ""


def test_what_lies_too_deep_is_not_looked_at():
    """The fifth list in the others: no exercise asks for one."""
    assert oddity([[[[[1j]]]]]) == ""


def test_a_list_that_contains_itself():
    own = []
    own.append(own)
    assert oddity(own) == ""


def test_a_short_text():
    class Loud:
        def __repr__(self):
            raise ZeroDivisionError

    assert short([1]) == "[1]"
    assert short("x" * 58) == repr("x" * 58)
    assert short("x" * 59) == f"'{'x' * 58}…"
    assert len(short("x" * 1000)) == 60
    assert short(Loud()) == "a value of type Loud (ZeroDivisionError when printed)"
    assert short(10**5000) == "a value of type int (ValueError when printed)"


def test_an_error_in_a_line():
    assert in_a_line(ValueError("first\nsecond")) == "ValueError: first"
    assert in_a_line(KeyError()) == "KeyError: "


NAN, INF, ONES = float("nan"), float("inf"), torch.ones(2, 2)


@pytest.mark.parametrize(
    ("found", "right", "close", "agrees"),
    [
        (1.0, 1, 0, True), (1, True, 0, False), (True, 1, 0, False), ("1", 1, 0, False),
        (None, 0, 0, False), (None, None, 0, True), ("a", "a", 0, True), ("a", "b", 0, False),
        (1.125, 1, 0.125, True), (1.2, 1, 0.125, False), (0.125, 0, 0.125, True),
        (10.5, 10, 0.1, True), (12, 10, 0.1, False), (INF, INF, 0, True), (-INF, INF, 1, False),
        (np.float32(1), 1, 0, True), (1, np.int64(1), 0, True),
        (NAN, NAN, 1, False), ([1, (2,)], (1, [2]), 0, True), ([1, 2], [1], 0, False),
        ([[1], 2], [[1], 3], 0, False), ({"a": [1]}, {"a": (1,)}, 0, True),
        ({"a": 1}, {"a": 1, "b": 1}, 0, False), ({"a": 1}, {"a": 2}, 0, False),
        (ONES.int(), ONES, 0, True), (ONES.numpy(), ONES.int().numpy(), 0, True),
        (ONES.tolist(), ONES, 0, False), (ONES.numpy(), ONES, 0, False),
        (ONES[:1], ONES, 0, False), (ONES[None], ONES, 0, False), (ONES.view(4), ONES, 0, False),
        (ONES[:1], ONES[:, :1], 0, False), (ONES * 1.5, ONES, 0.125, False),
        (ONES * 1.125, ONES, 0.125, True), (ONES * NAN, ONES * NAN, 1, False),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_two_answers_agree(found, right, close, agrees):
    assert same(found, right, close) == agrees


def test_a_mistake_without_numbers_explains_no_others():
    """Nothing, NaN and 0 are alike; a wrong number is another mistake."""
    wrong = torch.tensor([1.0, float("nan"), float("inf")])
    for found, fits in (([1, 0, 0], True), ([1, float("nan"), 0], True), ([1, 0, 3], False),
                        ([2, 0, 0], False)):  # fmt: skip
        assert alike(torch.tensor(found), wrong, 0.0) == fits

"""Which candidate a tensor equals, and how it differs from the right one."""

import math

import pytest
import torch

from helpers.check.week04.kinds import INFINITE, OTHER, RIGHT, ROUNDED, close, kind_of


def row(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


CANDIDATES = {
    RIGHT: row(1, -2, 300),
    "twice": row(2, -4, 600),
    "also twice": row(2, -4, 600),
    "the sum": torch.tensor(299.0).double(),
    "infinite": row(1, math.inf, 3),
}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (row(1, -2, 300), RIGHT),
        (row(1 + 1e-13, -2, 300), RIGHT),
        (row(1 + 1e-11, -2, 300), ROUNDED),
        (row(1, -2, 300 + 2e-10), RIGHT),
        (row(1, -2, 300 + 6e-10), ROUNDED),
        (row(1, -2, 300 - 2e-3), ROUNDED),
        (row(1, -2, 300 - 4e-3), OTHER),
        (row(1 + 1e-4, -2, 300), OTHER),
        (torch.tensor([1, -2, 300]), RIGHT),  # any dtype
        (row(1, -2, 300).float(), RIGHT),
        (row(1, -2, 300).requires_grad_(), RIGHT),
        (row(2, -4, 600), "twice"),
        (torch.tensor(299.0), "the sum"),
        (row(299), "of shape (1,), not (3,)"),
        (row(1, -2, 300)[None], "of shape (1, 3), not (3,)"),
        (row(1, -2), "of shape (2,), not (3,)"),
        (row(math.nan, math.inf), "of shape (2,), not (3,)"),
        (row(1, math.inf, 3), "infinite"),
        (row(1, -2, math.inf), INFINITE),
        (row(math.nan, -2, 300), INFINITE),
        (row(math.nan, math.nan, math.nan), INFINITE),
        (row(1, -2, 301), OTHER),
        ([1, -2, 300], "no tensor: list"),
        (None, "no tensor: NoneType"),
    ],
)
def test_the_kind_of_a_tensor(found, kind):
    assert kind_of(found, CANDIDATES) == kind


def test_small_numbers_are_close_to_zero():
    assert close(row(9e-13), row(0))
    assert not close(row(2e-12), row(0))
    assert kind_of(row(5e-7), {RIGHT: row(0)}) == ROUNDED
    assert kind_of(row(2e-6), {RIGHT: row(0)}) == OTHER

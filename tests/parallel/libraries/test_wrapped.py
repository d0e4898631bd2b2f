"""A wrapper of another type is an error, not a silent change of strategy."""

import pytest
import torch

from helpers.parallel.libraries.wrapped import WrongWrapper, expect, expect_ranks


def test_the_right_type_passes_through():
    module = torch.nn.Linear(1, 1)
    assert expect(module, torch.nn.Module, "anyone") is module


def test_another_type_is_named():
    with pytest.raises(WrongWrapper, match=r"prepare returned a Linear, not a Sequential"):
        expect(torch.nn.Linear(1, 1), torch.nn.Sequential, "prepare")


def test_the_ranks_are_counted():
    expect_ranks(2, 2, "prepare")
    with pytest.raises(WrongWrapper, match=r"prepare sees 0 ranks, and there are 2"):
        expect_ranks(0, 2, "prepare")
    with pytest.raises(WrongWrapper, match=r"prepare sees 3 ranks, and there are 2"):
        expect_ranks(3, 2, "prepare")
    with pytest.raises(WrongWrapper, match=r"prepare sees 1 rank, and there are 2"):
        expect_ranks(1, 2, "prepare")

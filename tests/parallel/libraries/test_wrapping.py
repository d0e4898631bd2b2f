"""Policies choose the units of the plain GPT; a wrapper of another type is an error."""

import pytest
import torch

from helpers.models.gpt import GPT, Block, GPTConfig
from helpers.parallel.libraries.strategy import WrongWrapper, expect, expect_ranks
from helpers.parallel.libraries.wrapping import each_block, groups_of, of_type, one_unit

MODEL = GPT(GPTConfig(vocab=8, context=4, width=8, layers=5, heads=2), device="meta")
BLOCKS = list(MODEL.blocks.values())


def test_each_block():
    assert each_block(MODEL) == BLOCKS
    assert one_unit(MODEL) == []


def test_groups():
    assert groups_of(2)(MODEL) == [BLOCKS[:2], BLOCKS[2:4], BLOCKS[4:]]
    assert groups_of(9)(MODEL) == [BLOCKS]
    assert groups_of(1)(MODEL) == [[block] for block in BLOCKS]
    with pytest.raises(ValueError, match="at least one block"):
        groups_of(0)


def test_by_type_inner_modules_first():
    """`fully_shard` must be called on inner modules before outer ones."""
    found = of_type(Block, torch.nn.Linear)(MODEL)
    assert set(BLOCKS) < set(found)
    for block in BLOCKS:
        assert found.index(block) > found.index(block.mlp.down)
    assert of_type(GPT, Block)(MODEL) == BLOCKS[::-1]  # without the root
    with pytest.raises(ValueError, match="contains no Conv2d"):
        of_type(torch.nn.Conv2d)(MODEL)


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

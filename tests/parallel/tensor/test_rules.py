"""Each operation places its result; a wrong one is named, with what to do instead."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from helpers.comm.regions import copy_to, gather_from, reduce_from, reduce_scatter_to
from helpers.parallel.tensor.call import PARTIAL, WHOLE, PlacementError
from tests.parallel.tensor.placed import B, D, F, T, tensor, x

UP, DOWN = partial(tensor, F, D, at=0), partial(tensor, D, F, at=1)

WRONG = {
    "a GELU of a partial sum": (
        lambda: functional.gelu(x(PARTIAL)),
        "gelu of a partial sum.*Sum over the ranks first",
    ),
    "row, then column, without a sum between": (
        lambda: functional.linear(functional.linear(x(2), tensor(F, D, at=1)), DOWN()),
        "a partial sum and a tensor that is cut: sum first",
    ),
    "a sum taken twice": (
        lambda: reduce_from(x(), None),
        "reduce_from of a whole tensor.*summed before",
    ),
    "a sum of columns": (
        lambda: reduce_from(functional.linear(x(), UP()), None),
        r"reduce_from of a cut\(2\) tensor",
    ),
    "a bias added on every rank": (
        lambda: functional.linear(tensor(B, T, F, at=2), DOWN(), tensor(D)),
        "adds its bias to a partial sum",
    ),
    "a residual added before the sum": (
        lambda: x() + functional.linear(tensor(B, T, F, at=2), DOWN()),
        "of a partial sum and a whole tensor.*Add it after the sum",
    ),
    "a norm over a cut dim": (
        lambda: functional.layer_norm(x(2), (D,)),
        "layer_norm over dim 2, which is cut",
    ),
    "a softmax over the local vocabulary": (
        lambda: functional.linear(x(), UP()).softmax(-1),
        "softmax over dim 2, which is cut",
    ),
    "whole weights after a cut input": (
        lambda: functional.linear(x(2), tensor(F, D)),
        "first factor is cut along the dim that is summed",
    ),
    "a cut and a whole tensor side by side": (
        lambda: tensor(B, T, F, at=2) * tensor(F),
        "shapes fit by accident",
    ),
    "different cuts": (lambda: x(1) + x(2), "cut along different dims"),
    "tokens that are gathered twice": (
        lambda: gather_from(x(), None),
        "gather_from of a whole tensor",
    ),
    "a shard into a layer": (lambda: copy_to(x(1), None), "must be whole"),
    "a reduce-scatter of a shard": (
        lambda: reduce_scatter_to(x(1), None),
        "reduce_scatter_to of a cut.1. tensor",
    ),
    "queries by heads, keys whole": (
        lambda: functional.scaled_dot_product_attention(
            tensor(B, 2, T, 3, at=1), tensor(B, 2, T, 3), tensor(B, 2, T, 3)
        ),
        "cut queries, keys and values by heads",
    ),
    "weights cut along the inner dim after a whole input": (
        lambda: functional.linear(tensor(B, T, F), DOWN()),
        "second factor is cut along the dim that is summed",
    ),
    "two columns, one after the other": (
        lambda: functional.linear(x(2), UP()),
        "first factor is cut along the dim that is summed",
    ),
    "a number added to a partial sum": (lambda: x(PARTIAL) + 1, "and a number: every rank"),
    "a partial sum taken from a number": (lambda: 1 - x(PARTIAL), "and a number: every rank"),
    "a quotient by a partial sum": (lambda: x() / x(PARTIAL), "by a partial sum"),
    "a mask with infinity on a partial sum": (
        lambda: x(PARTIAL).masked_fill(torch.ones(D, dtype=torch.bool), float("-inf")),
        "each rank's value is added",
    ),
    "two cut tensors side by side": (
        lambda: torch.cat([x(2), x(2)], dim=-1),
        "cat along dim 2, which is cut",
    ),
    "a mean of all numbers": (lambda: x(1).mean(), "mean over dim 1, which is cut"),
    "a mean over the shards": (lambda: x(1).mean((0, 1)), "mean over dim 1, which is cut"),
    "a square of a partial sum": (lambda: x(PARTIAL) * x(PARTIAL), "sum over the ranks first"),
    "what the checker does not know": (lambda: torch.fft.fft(x(2)), "no rule"),
}


@pytest.mark.parametrize(("forward", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_operation_is_named(forward, words):
    with pytest.raises(PlacementError, match=words):
        forward()


RIGHT = {
    "column, then row": (
        lambda: functional.linear(functional.gelu(functional.linear(x(), UP())), DOWN()),
        PARTIAL,
    ),
    "a product of partial sums and a number": (lambda: 0.5 * x(PARTIAL) / 2, PARTIAL),
    "a sum of partial sums": (lambda: x(PARTIAL) + x(PARTIAL), PARTIAL),
    "whole after the sum": (lambda: functional.layer_norm(x(), (D,)) + x(), WHOLE),
    "shards of the tokens": (lambda: functional.layer_norm(x(1), (D,)) + x(1), 1),
    "zeros in a partial sum": (
        lambda: x(PARTIAL).masked_fill(torch.ones(D, dtype=torch.bool), 0),
        PARTIAL,
    ),
    "nothing added to a partial sum": (lambda: x(PARTIAL) + 0, PARTIAL),
    "a mean over another dim": (lambda: x(2).mean(1), 1),
    "a mean that keeps its dim": (lambda: x(2).mean(1, keepdim=True), 2),
    "a mean over a dim behind": (lambda: x(1).mean(-1), 1),
    "the weight by its name": (lambda: functional.linear(x(), weight=UP()), 2),
    "a scale that is cut alike": (lambda: x(2) * tensor(D, at=0), 2),
    "a whole column of ones": (lambda: x(2) * tensor(B, T, 1), 2),
    "shards side by side along another dim": (lambda: torch.cat([x(1), x(1)], -1), 1),
    "what the checker does not know, of whole tensors": (lambda: torch.fft.fft(x()), WHOLE),
}


@pytest.mark.parametrize(("forward", "placement"), RIGHT.values(), ids=RIGHT)
def test_a_right_operation_has_its_placement(forward, placement):
    assert forward().placement == placement

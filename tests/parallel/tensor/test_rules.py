"""Each operation places its result; a wrong one is named, with what to do instead."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from helpers.comm.regions import copy_to, gather_from, reduce_from, reduce_scatter_to
from helpers.parallel.tensor.checker import Log, place
from helpers.parallel.tensor.rules import PARTIAL, WHOLE, PlacementError

LOG = Log()
B, T, D, F = 2, 4, 6, 8  # sequences, tokens, and two widths


def tensor(*shape, at=WHOLE):
    return place(torch.randn(*shape), at, LOG)


def x(at=WHOLE):
    return tensor(B, T, D, at=at)


UP, DOWN = partial(tensor, F, D, at=0), partial(tensor, D, F, at=1)


def tokens(at=WHOLE):
    return place(torch.zeros(B, T, dtype=torch.long), at, LOG)


class Alone:
    """The transport of a single rank, which sends nothing."""

    size = 1


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
    "what it does not know, of a whole and a cut tensor": (
        lambda: torch.bmm(x(), tensor(B, D, F, at=2)),
        r"bmm of whole, cut\(2\): the checker has no rule",
    ),
    "a table and tokens that are both cut": (
        lambda: functional.embedding(tokens(1), tensor(F, D, at=0)),
        "tokens and table are both cut",
    ),
    "queries, keys and values by tokens": (
        lambda: functional.scaled_dot_product_attention(*(tensor(B, 2, T, 3, at=2),) * 3),
        r"attention of cut\(2\), cut\(2\), cut\(2\)",
    ),
    "a norm over several dims": (
        lambda: functional.layer_norm(x(1), (T, D)),
        "layer_norm over dim 1, which is cut",
    ),
    "different cuts side by side": (
        lambda: torch.cat([x(1), x(2)], 0),
        "cut along different dims",
    ),
    "a fraction added to a partial sum": (lambda: x(PARTIAL) + 0.5, "and a number: every rank"),
    "a whole tensor taken from a partial sum": (lambda: x(PARTIAL) - x(), "a whole tensor: every"),
    "a cut tensor added to a partial sum": (lambda: x(1) + x(PARTIAL), r"a cut\(1\) tensor: every"),
    "a product from the right": (
        lambda: tensor(D, F, at=0).__rmatmul__(x(2)),
        "rmatmul of .* no rule",
    ),
    "any number but zero in a partial sum": (
        lambda: x(PARTIAL).masked_fill(torch.ones(D, dtype=torch.bool), value=1.0),
        "each rank's value is added",
    ),
    "a product of partial sums": (
        lambda: tensor(T, D, at=PARTIAL) @ tensor(D, F, at=PARTIAL),
        "sum first",
    ),
    "a partial sum times a cut tensor": (lambda: x(PARTIAL) * x(1), "sum over the ranks first"),
    "a partial sum over a cut tensor": (lambda: x(PARTIAL) / x(1), "sum over the ranks first"),
    "rows of the one factor, columns of the other": (
        lambda: tensor(B, T, D, at=1) @ tensor(D, F, at=1),
        "both factors are cut, along dims that do not belong together",
    ),
    "another batch dim of each factor": (
        lambda: tensor(2, 2, T, D, at=0) @ tensor(2, 2, D, F, at=1),
        "both factors are cut, along dims that do not belong together",
    ),
    "a gather of columns": (lambda: gather_from(x(2), None), r"gather_from of a cut\(2\) tensor"),
    "partial sums into a layer": (lambda: copy_to(x(PARTIAL), None), "copy_to of a partial tensor"),
    **{
        f"{name} of a partial sum": (
            lambda name=name: getattr(torch, name)(x(PARTIAL)),
            f"{name} of a partial sum: {name}.a . b. is not",
        )
        for name in ("relu", "tanh", "sigmoid", "exp", "log")
    },
    "silu of a partial sum": (lambda: functional.silu(x(PARTIAL)), "silu of a partial sum"),
    "pow of a partial sum": (lambda: x(PARTIAL) ** 2, "pow of a partial sum"),
    "a logarithm of a softmax over a cut dim": (lambda: x(2).log_softmax(2), "over dim 2"),
    "a root mean square over a cut dim": (lambda: functional.rms_norm(x(2), (D,)), "over dim 2"),
    "queries, keys and values as partial sums": (
        lambda: functional.scaled_dot_product_attention(*(tensor(B, 2, T, 3, at=PARTIAL),) * 3),
        "attention of partial, partial, partial",
    ),
    "a number before a partial sum": (lambda: 1 + x(PARTIAL), "and a number: every rank"),
    "a softmax of a partial sum": (lambda: x(PARTIAL).softmax(-1), "softmax of a partial sum"),
    # operations that move dims, or cut them up
    "heads and widths in the wrong order": (
        lambda: tensor(B, T, 2, 3, at=3).flatten(2),
        "dim 3 is cut, and is not the first",
    ),
    "queries, keys and values fused, cut, and then chunked": (
        lambda: functional.linear(x(), tensor(3 * F, D, at=0)).chunk(3, dim=-1),
        "chunk along dim 2, which is cut",
    ),
    "chunks of the first dim": (lambda: x(0).chunk(2), "chunk along dim 0, which is cut"),
    "all but the first dim, flattened": (lambda: x(2).flatten(1), "dims 1 to 2"),
    "all dims, flattened": (lambda: x(1).flatten(), "dim 1 is cut, .* dims 0 to 2"),
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
    "a mean that keeps its dim, by place": (lambda: x(2).mean(1, True), 2),
    "a mean over a dim behind": (lambda: x(1).mean(-1), 1),
    "a mean over the first dim": (lambda: x(1).mean(0), 0),
    "the weight by its name": (lambda: functional.linear(x(), weight=UP()), 2),
    "a scale that is cut alike": (lambda: x(2) * tensor(D, at=0), 2),
    "a whole column of ones": (lambda: x(2) * tensor(B, T, 1), 2),
    "shards side by side along another dim": (lambda: torch.cat([x(1), x(1)], -1), 1),
    "what the checker does not know, of whole tensors": (lambda: torch.fft.fft(x()), WHOLE),
    "a lookup in some of the rows": (
        lambda: functional.embedding(tokens(), tensor(F, D, at=0)),
        PARTIAL,
    ),
    "a lookup in some of the columns": (
        lambda: functional.embedding(tokens(), tensor(F, D, at=1)),
        2,
    ),
    "a lookup of some of the tokens": (lambda: functional.embedding(tokens(1), tensor(F, D)), 1),
    "queries, keys and values by heads": (
        lambda: functional.scaled_dot_product_attention(*(tensor(B, 2, T, 3, at=1),) * 3),
        1,
    ),
    "queries, keys and values, whole": (
        lambda: functional.scaled_dot_product_attention(*(tensor(B, 2, T, 3),) * 3),
        WHOLE,
    ),
    "scores by heads": (lambda: tensor(B, 2, T, 3, at=1) @ tensor(B, 2, 3, T, at=1), 1),
    "heads of the last batch dim": (lambda: tensor(2, T, 3, at=0) @ tensor(B, 2, 3, T, at=1), 1),
    "rows of a factor with fewer dims": (lambda: tensor(T, D, at=0) @ tensor(B, D, F), 1),
    "some batches of the second factor": (lambda: tensor(T, D) @ tensor(B, D, F, at=0), 0),
    "batches of a second factor with fewer dims": (
        lambda: tensor(B, 2, T, 3) @ tensor(2, 3, T, at=0),
        1,
    ),
    "columns of the second factor": (lambda: x() @ tensor(D, F, at=1), 2),
    "whole factors": (lambda: x() @ tensor(D, F), WHOLE),
    "tokens through a whole matrix": (lambda: functional.linear(x(1), tensor(F, D)), 1),
    "a partial sum through a whole matrix": (
        lambda: functional.linear(x(PARTIAL), tensor(F, D)),
        PARTIAL,
    ),
    "a whole tensor through a partial matrix": (lambda: x() @ tensor(D, F, at=PARTIAL), PARTIAL),
    "columns with their bias": (lambda: functional.linear(x(), UP(), tensor(F, at=0)), 2),
    "a whole linear with its bias": (
        lambda: functional.linear(x(), tensor(F, D), tensor(F)),
        WHOLE,
    ),
    "a whole vector over shards": (lambda: x(1) * tensor(D), 1),
    "a whole vector over cut batches": (lambda: x(0) + tensor(D), 0),
    "a norm behind the cut dim": (lambda: functional.layer_norm(x(0), (T, D)), 0),
    "a mean over several dims before": (lambda: x(2).mean((0, -2)), 0),
    "a mean of everything whole": (lambda: x().mean(), WHOLE),
    "a difference of partial sums": (lambda: x(PARTIAL) - x(PARTIAL), PARTIAL),
    "the other sign of a partial sum": (lambda: -x(PARTIAL), PARTIAL),
    "a partial sum times a whole tensor": (lambda: x(PARTIAL) * x(), PARTIAL),
    "a partial sum over a whole tensor": (lambda: x(PARTIAL) / x(), PARTIAL),
    "a mask on shards": (lambda: x(1).masked_fill(torch.ones(D, dtype=torch.bool), 1.0), 1),
    "a sum over the ranks": (lambda: reduce_from(x(PARTIAL), Alone), WHOLE),
    "a sum that is cut by tokens": (lambda: reduce_scatter_to(x(PARTIAL), Alone), 1),
    "tokens that are gathered": (lambda: gather_from(x(1), Alone), WHOLE),
    "a whole tensor into a layer": (lambda: copy_to(x(), Alone), WHOLE),
    **{
        f"{name} of shards": (lambda name=name: getattr(x(1), name)(), 1)
        for name in ("float", "double", "clone", "detach", "contiguous", "relu", "exp")
    },
    "another format of a partial sum": (lambda: x(PARTIAL).to(torch.float64), PARTIAL),
    "a number before a tensor": (lambda: 1 + x(2), 2),
    "partial sums, added in place": (lambda: x(PARTIAL).__iadd__(x(PARTIAL)), PARTIAL),
    "a function's quotient": (lambda: torch.div(x(PARTIAL), 2), PARTIAL),
    "a product from the left": (lambda: x(PARTIAL).__rmul__(3), PARTIAL),
    "a view in another tensor's shape": (lambda: x(PARTIAL).view_as(x(PARTIAL)), PARTIAL),
    "a mean over a dim by its name": (lambda: x(2).mean(dim=1), 1),
    "a softmax over a dim by its name": (lambda: x(1).softmax(dim=-1), 1),
    "a norm's shape by its name": (
        lambda: functional.layer_norm(x(1), normalized_shape=(D,)),
        1,
    ),
    "heads with a whole mask": (
        lambda: functional.scaled_dot_product_attention(
            *(tensor(B, 2, T, 3, at=1),) * 3, torch.ones(T, T, dtype=torch.bool)
        ),
        1,
    ),
    "heads repeated": (lambda: tensor(B, 2, T, 3, at=1).repeat_interleave(2, 1), 1),
    # operations that move dims, or cut them up
    "flattened by names": (lambda: x(2).flatten(start_dim=0, end_dim=1), 1),
    "unflattened by names": (lambda: x(1).unflatten(dim=0, sizes=(1, B)), 2),
    "swapped by names": (lambda: x(1).transpose(dim0=1, dim1=2), 2),
    "swapped back": (lambda: x(2).transpose(1, 2), 1),
    "two other dims swapped": (lambda: x(0).transpose(1, 2), 0),
    "a cut width, made heads": (lambda: x(2).unflatten(-1, (2, 3)), 2),
    "dims before the cut one, flattened": (lambda: tensor(B, T, 2, 3, at=3).flatten(1, 2), 2),
    "chunks of another dim": (lambda: x(1).chunk(2, dim=-1)[0], 1),
    "a partial sum, flattened": (lambda: x(PARTIAL).flatten(), PARTIAL),
    "a dim before, made three": (lambda: x(2).unflatten(0, (1, B, 1)), 4),
    "a dim behind, made two": (lambda: x(1).unflatten(2, (2, 3)), 1),
    "the cut dim is the first of those flattened": (lambda: x(1).flatten(1), 1),
    "the last two dims, counted from the end": (lambda: x(1).flatten(-2, -1), 1),
    "the first two dims, counted from the end": (lambda: x(2).flatten(-3, -2), 1),
    "a dim before, counted from the end": (lambda: x(2).unflatten(-3, (1, B)), 3),
    "the first of all": (lambda: x(0).flatten(), 0),
    "dims behind the cut one, flattened": (lambda: x(0).flatten(1, 2), 0),
    "three dims before, flattened": (lambda: tensor(B, T, 2, 3, at=3).flatten(0, 2), 1),
    "swapped from the end": (lambda: x(2).transpose(-1, -3), 0),
    "chunks of a partial sum": (lambda: x(PARTIAL).chunk(2)[1], PARTIAL),
    "a partial sum, unflattened": (lambda: x(PARTIAL).unflatten(0, (1, B)), PARTIAL),
    "a whole tensor, swapped": (lambda: x().transpose(0, 1), WHOLE),
}


@pytest.mark.parametrize(("forward", "placement"), RIGHT.values(), ids=RIGHT)
def test_a_right_operation_has_its_placement(forward, placement):
    assert forward().placement == placement

"""Operations that move dims or cut them up: where the cut dim is afterwards."""

import pytest
from torch.nn import functional

from helpers.parallel.tensor.call import PARTIAL, WHOLE, PlacementError
from tests.parallel.tensor.placed import B, D, F, T, tensor, x

WRONG = {
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
def test_a_wrong_move_is_named(forward, words):
    with pytest.raises(PlacementError, match=words):
        forward()


RIGHT = {
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
def test_a_right_move_has_its_placement(forward, placement):
    assert forward().placement == placement

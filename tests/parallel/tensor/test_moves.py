"""Operations that move dims or cut them up: where the cut dim is afterwards."""

import pytest
from torch.nn import functional

from helpers.parallel.tensor.call import PARTIAL, PlacementError
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
}


@pytest.mark.parametrize(("forward", "placement"), RIGHT.values(), ids=RIGHT)
def test_a_right_move_has_its_placement(forward, placement):
    assert forward().placement == placement

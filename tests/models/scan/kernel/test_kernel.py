"""The kernel, interpreted, beside the recurrence token by token."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.measure.kernels.interpret import interpreted
from helpers.models.scan import combine as plain
from helpers.models.scan.kernel.kernel import combine, selective
from helpers.models.scan.kernel.launch import constants
from tests.models.scan import oracle

GUARD = 77.0


@pytest.mark.parametrize("tile", [(1, 1), (4, 2), (8, 8)], ids=str)
@pytest.mark.parametrize("length", [1, 4, 9])
def test_tiles_of_any_size_give_the_recurrence_and_write_nothing_else(length, tile):
    x, delta, A, B, C, D, h0 = (t.detach() for t in oracle.selective_inputs(length))
    sequences, channels, state = h0.shape
    y = torch.full((sequences + 1, length, channels), GUARD, dtype=torch.float64)
    h = torch.full((sequences + 1, state, channels), GUARD, dtype=torch.float64)
    h[:sequences] = h0.mT
    grid = (sequences, -(-channels // tile[1]))
    turned = (x, delta, A.mT.contiguous(), B.mT.contiguous(), C.mT.contiguous(), D)
    interpreted(selective)[grid](
        *turned, y, h, length, channels, **constants(torch.float64, state, tile)
    )
    wanted, last = oracle.selective(x, delta, A, B, C, D, h0)
    oracle.assert_same((y[:sequences], h[:sequences].mT), (wanted, last))
    assert (y[sequences:] == GUARD).all()
    assert (h[sequences:] == GUARD).all()


def test_the_operator_of_the_kernel_is_that_of_the_scans():
    one, two = (torch.randn(2, 3, dtype=torch.float64) for _ in "ab")
    oracle.assert_same(combine.fn(*one, *two), plain.combine(tuple(one), tuple(two)))

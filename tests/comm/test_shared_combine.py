"""Rows are combined in their order, block by block, whatever the sizes of the blocks."""

from functools import reduce

import pytest
import torch

from helpers.comm import shared_combine
from helpers.comm.shared_combine import BLOCK, combined, in_blocks

pytestmark = pytest.mark.filterwarnings("error")  # PyTorch warns of a result that it must resize


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(shared_combine, "BLOCK", 24)  # three numbers of float64


def rows(count, numel):
    drawn = torch.Generator().manual_seed(10 * count + numel)
    return [torch.randn(numel, generator=drawn, dtype=torch.float64) for _ in range(count)]


def test_views_of_a_row():
    row = torch.arange(7.0, dtype=torch.float64)
    assert [block.tolist() for block in in_blocks(row)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [block.data_ptr() for block in in_blocks(row)] == [row[k:].data_ptr() for k in (0, 3, 6)]
    assert [block is row[:3] or len(block) for block in in_blocks(row[:3])] == [3]
    assert [len(block) for block in in_blocks(row[:0])] == [0]
    wide = torch.zeros(2, dtype=torch.complex128)  # 16 bytes each: one in a block
    assert [len(block) for block in in_blocks(wide)] == [1, 1]
    assert BLOCK == 2**19


def test_a_number_larger_than_a_block_is_a_block(monkeypatch):
    monkeypatch.setattr(shared_combine, "BLOCK", 3)
    assert [len(block) for block in in_blocks(torch.zeros(2))] == [1, 1]


@pytest.mark.parametrize("numel", [0, 1, 3, 7, 12])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("targets", [1, 3])
def test_the_order_counts(count, targets, numel):
    """A difference is not associative: ((a - b) - c) - d."""
    sources = rows(count, numel)
    expected = reduce(torch.sub, sources)
    before = [row.clone() for row in sources]
    out = [torch.full((numel,), 9.0, dtype=torch.float64) for _ in range(targets)]
    combined(torch.sub, [in_blocks(row) for row in sources], [in_blocks(row) for row in out])
    assert all(torch.equal(row, expected) for row in out)
    assert all(torch.equal(row, kept) for row, kept in zip(sources, before, strict=True))


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_target_may_be_a_source(count, place):
    sources = rows(count, 7)
    expected = reduce(torch.sub, sources)
    target, other = sources[place % count], torch.zeros(7, dtype=torch.float64)
    blocks = [in_blocks(row) for row in sources]
    combined(torch.sub, blocks, [in_blocks(target), in_blocks(other)])
    assert torch.equal(target, expected)
    assert torch.equal(other, expected)
    combined(torch.sub, blocks, blocks)  # all of them
    again = reduce(torch.sub, [expected if row is target else row for row in rows(count, 7)])
    assert len({tuple(row.tolist()) for row in sources}) == 1
    assert again.shape == (7,)


def test_rows_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="zip"):
        combined(
            torch.add,
            [in_blocks(row) for row in (*rows(1, 7), *rows(1, 3))],
            [in_blocks(*rows(1, 7))],
        )

"""Blocks are read in a table's order, head by head, into memory that is used again."""

import pytest
import torch

from helpers.models.caches.gather import Gather, Workspace
from helpers.models.caches.kept import Kept
from helpers.models.caches.store import Store

# Tensors that cut a block evenly, and tensors that do not: the widths differ.
KEPT = {
    "equal": {0: Kept(per_token=((2, 3), (2, 3))), 5: Kept(per_token=((4, 3),))},
    "twice as wide": {0: Kept(per_token=((2, 3), (2, 3))), 5: Kept(per_token=((2, 6),))},
    "different": {0: Kept(per_token=((1, 5), (2, 3))), 5: Kept(per_token=((3, 2), (1, 1)))},
}
every_kept = pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)


def filled(kept, blocks=6):
    store = Store(kept, blocks, 2, torch.float64, "cpu")
    store.memory.copy_(torch.arange(store.memory.numel()).view_as(store.memory))
    return store


@every_kept
@pytest.mark.parametrize("table", [[[3, 0], [5, 1], [3, 3]], [[2]], [[], []], []], ids=str)
def test_rows_are_in_the_table_s_order(kept, table):
    store = filled(kept)
    index = store.index(table).reshape(len(table), -1 if table and table[0] else 0)
    gather = Gather(store, Workspace(), index)
    for number, one in kept.items():
        found = gather(number)
        assert len(found) == len(one.per_token)
        for tensor, rows in zip(found, store.rows[number], strict=True):
            _, slots, heads, width = rows.shape
            assert tensor.shape == (len(table), heads, index.shape[1] * slots, width)
            for sequence, blocks in enumerate(table):
                for place in range(len(blocks) * slots):
                    expected = rows[blocks[place // slots], place % slots]  # (heads, width)
                    assert torch.equal(tensor[sequence, :, place], expected)


@every_kept
def test_memory_is_used_again_and_grows(kept):
    store, workspace = filled(kept), Workspace()
    assert workspace.bytes == 0
    small, large = (
        Gather(store, workspace, store.index(table)) for table in ([[1]], [[1, 2], [3, 4]])
    )
    most = max(h * w for one in kept.values() for h, w in one.per_token[:1])
    most += max(h * w for one in kept.values() for h, w in one.per_token[1:])

    def read(gather):
        return [gather(number)[0].data_ptr() for number in kept]

    assert len(set(read(small) + read(small))) <= 2  # a larger tensor of block 5 may move it once
    assert workspace.bytes == 1 * 2 * most * 8
    read(large)
    assert workspace.bytes == 4 * 2 * most * 8
    read(small)
    assert workspace.bytes == 4 * 2 * most * 8


def test_the_tensors_of_one_block_do_not_overwrite_each_other():
    store = filled(KEPT["equal"])
    keys, values = Gather(store, Workspace(), store.index([[0, 1]]))(0)
    assert not torch.equal(keys, values)
    assert torch.equal(values[0, :, 0], store.rows[0][1][0, 0])

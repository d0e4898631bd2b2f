"""The memory of blocks: views, copies, and reading blocks in a table's order, head by head."""

import pytest
import torch

from helpers.models.caches.cache import Kept
from helpers.models.caches.store import Gather, Store, Workspace

KEPT = {
    3: Kept(per_token=((2, 3), (1, 5))),
    7: Kept(per_sequence=((4,),)),
    9: Kept(per_token=((1, 2),)),
}


def some_store(blocks=4):
    return Store(KEPT, blocks, 2, torch.float64, "cpu")


def test_the_views_cover_the_memory_once():
    store = some_store()
    assert [[tuple(r.shape) for r in rows] for rows in store.rows.values()] == [
        [(4, 2, 2, 3), (4, 2, 1, 5)],
        [],
        [(4, 2, 1, 2)],
    ]
    assert store.rows[3][0].stride() == (26, 3, 2 * 3, 1)  # a head's slots follow each other
    assert store.starts == {3: [0, 12], 7: [], 9: [22]}
    assert store.memory.count_nonzero() == 0
    for rows in store.rows.values():
        for row in rows:
            row += 1
    assert (store.memory == 1).all()
    assert store.block_bytes == 2 * (6 + 5 + 2) * 8
    assert store.bytes == 4 * store.block_bytes == store.memory.untyped_storage().nbytes()


def test_blocks_are_copied_and_cleared_whole():
    store = some_store()
    store.memory.copy_(torch.arange(4.0)[:, None].expand_as(store.memory))
    store.copy([3, 1], [0, 2])
    assert store.memory.double().mean(1).tolist() == [3, 1, 1, 3]
    store.clear([2, 0])
    assert store.memory.double().mean(1).tolist() == [0, 1, 0, 3]
    store.clear([])
    store.copy([], [])
    assert store.rows[9][0][:, 0, 0, 0].tolist() == [0, 1, 0, 3]


def test_sizes_that_cannot_be():
    assert some_store(0).bytes == 0
    with pytest.raises(ValueError, match="-1 blocks of 2 tokens"):
        some_store(-1)
    with pytest.raises(ValueError, match="4 blocks of 0 tokens"):
        Store(KEPT, 4, 0, torch.float32, "cpu")


# Tensors that cut a block evenly, and tensors that do not: the widths differ.
WIDTHS = {
    "equal": {0: Kept(per_token=((2, 3), (2, 3))), 5: Kept(per_token=((4, 3),))},
    "twice as wide": {0: Kept(per_token=((2, 3), (2, 3))), 5: Kept(per_token=((2, 6),))},
    "different": {0: Kept(per_token=((1, 5), (2, 3))), 5: Kept(per_token=((3, 2), (1, 1)))},
}
every_kept = pytest.mark.parametrize("kept", WIDTHS.values(), ids=WIDTHS)


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
    store = filled(WIDTHS["equal"])
    keys, values = Gather(store, Workspace(), store.index([[0, 1]]))(0)
    assert not torch.equal(keys, values)
    assert torch.equal(values[0, :, 0], store.rows[0][1][0, 0])

"""The views of all blocks of the model fill each row once, and a row is copied whole."""

import pytest
import torch

from helpers.models.caches.kept import Kept
from helpers.models.caches.store import Store

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

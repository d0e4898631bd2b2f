"""A row's shards: equal, in order, and together every number of every tensor once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.parallel.zero.row import Row


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 7))
def test_shards_are_equal_and_hold_each_number_once(sizes, ranks):
    tensors = {f"t{i}": torch.arange(n) + 100 * i + 1 for i, n in enumerate(sizes)}
    row = Row({name: len(tensor) for name, tensor in tensors.items()}, ranks)
    whole = torch.zeros(row.size, dtype=torch.int64)
    for name, tensor in tensors.items():
        whole[slice(*row.places[name])] = tensor
    assert row.size == ranks * row.shard
    assert 0 <= row.size - sum(sizes) < ranks
    for name, tensor in tensors.items():
        found = []
        for rank, shard in enumerate(whole.view(ranks, row.shard)):
            start, stop = row.held(name, rank)
            assert torch.equal(shard[row.inside(name, rank)], tensor[start:stop])
            found.append(tensor[start:stop])
        assert torch.equal(torch.cat(found), tensor)


def test_an_example():
    row = Row({"weight": 35, "bias": 5}, ranks=3)
    assert (row.size, row.shard) == (42, 14)
    assert row.places == {"weight": (0, 35), "bias": (35, 40)}
    assert [row.held("bias", rank) for rank in range(3)] == [(0, 0), (0, 0), (0, 5)]
    assert row.inside("bias", 2) == slice(7, 12)
    assert row.held("weight", 2) == (28, 35)

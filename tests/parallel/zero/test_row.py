"""A row's shards: every number once; gathered parameters are freed and gathered again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.parallel.zero.row import Gathered, Row, Whole
from tests.parallel.zero.beside import Late


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


def gathered(transport):
    p = torch.nn.Parameter(torch.empty(0))
    found = Gathered({"p": p}, {"p": (3,)}, transport)
    found.shard.copy_(torch.tensor([1.0, 2.0]))
    return found, p


@pytest.mark.parametrize("rounds", [1, 2])
def test_memory_is_freed_only_after_its_message_has_arrived(rounds):
    """Else the message would write to memory that is another tensor's by then."""
    transport = Late()
    found, p = gathered(transport)
    for _ in range(rounds):
        found.gather()
        assert (found.state, transport.under_way) == ("gathering", 1)
        for _ in range(2):
            found.free()
            assert (found.state, transport.under_way) == ("freed", 0)
        assert found.whole.untyped_storage().nbytes() == 0
        assert p.isnan().all()
    found.gather()
    found.gather()  # it is under way already
    assert transport.under_way == 1
    for _ in range(2):  # waits once for each message
        found.use()
        assert (found.state, transport.under_way) == ("in use", 0)
    assert p.tolist() == [1, 2, 1]
    found.gather()  # it is there already
    assert (found.state, transport.under_way) == ("in use", 0)


def test_whole_parameters_wait_for_each_message_once():
    transport, p = Late(), torch.nn.Parameter(torch.empty(3))
    found = Whole({"p": p}, transport)
    assert p.tolist() == [0, 0, 0]
    assert found.whole.tolist() == [0, 0, 0, 0]  # the padding too
    found.wait()  # nothing is under way
    found.shard.copy_(torch.tensor([1.0, 2.0]))
    found.publish()
    assert transport.under_way == 1
    for _ in range(2):
        found.wait()
        assert transport.under_way == 0
    assert p.tolist() == [1, 2, 1]

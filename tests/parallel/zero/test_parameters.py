"""Gathered parameters: freed while their gather is under way, and gathered again."""

import pytest
import torch

from helpers.parallel.zero.parameters import Gathered, Whole


class Late:
    """Two ranks in one process: both have this rank's shard. A message arrives when waited for."""

    size, rank = 2, 0

    def __init__(self):
        self.under_way = 0

    def empty(self, numel, dtype, device):
        return torch.full((numel,), 7.0, dtype=dtype, device=device)

    def all_gather(self, every, own):
        self.under_way += 1
        return Arriving(self, every, own)


class Arriving:
    def __init__(self, transport, every, own):
        self.transport, self.every, self.own = transport, every, own

    def wait(self):
        self.transport.under_way -= 1
        there, needed = self.every.untyped_storage().nbytes(), self.every.nbytes
        assert there == needed  # before pytest would print freed memory
        self.every.copy_(self.own.expand_as(self.every))


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


class Second(Late):
    """Rank 1's shard is behind a shard of tens."""

    rank = 1

    def all_gather(self, every, own):
        every[0].fill_(10)
        every[1].copy_(own)
        return super().all_gather(every, every.clone())


SHAPES = {"matrix": (2, 3), "vector": (3,)}  # a row of 10 numbers, one of them padding


def test_this_rank_s_shard_is_the_second_half_of_the_row():
    held = {name: torch.nn.Parameter(torch.empty(shape)) for name, shape in SHAPES.items()}
    whole = Whole(held, Second())
    assert whole.buffers == [whole.whole]
    whole.shard.copy_(torch.arange(5.0))
    assert held["matrix"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert held["vector"].tolist() == [1, 2, 3]
    found = Gathered(held, SHAPES, Second())
    assert [buffer.numel() for buffer in found.buffers] == [5, 10]  # the shard is what is held
    assert found.shard.tolist() == [0] * 5
    assert not found.kept
    assert Gathered(held, SHAPES, Second(), kept=True).kept
    found.shard.copy_(torch.arange(5.0))
    for p, shape in zip(held.values(), SHAPES.values(), strict=True):
        assert p.shape == shape
        assert p.isnan().all()
    found.gather()
    found.use()
    assert held["matrix"].tolist() == [[10, 10, 10], [10, 10, 0]]
    assert held["vector"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_all_memory_has_the_parameters_format(dtype):
    p = torch.nn.Parameter(torch.empty(3, dtype=dtype))
    whole = Whole({"p": p}, Second())
    assert {tensor.dtype for tensor in (p, whole.whole, whole.shard)} == {dtype}
    found = Gathered({"p": p}, {"p": (3,)}, Second())
    assert {tensor.dtype for tensor in (p, found.whole, found.shard)} == {dtype}
    found.gather()
    found.use()
    assert p.dtype == dtype
    assert found.nbytes == 4 * dtype.itemsize

"""Buffers that are lent: a transport's own memory is lent again, ordinary memory is not kept."""

import torch

from helpers.parallel.zero.pool import Pool


class Own:
    """The memory of a transport; `made` lists its buffers."""

    def __init__(self, lasting):
        self.lasting, self.made = lasting, []

    def empty(self, numel, dtype, device):
        self.made.append(torch.zeros(numel, dtype=dtype, device=device))
        return self.made[-1]


def test_a_lasting_buffer_is_lent_to_the_next_row_whatever_its_size():
    transport = Own(lasting=True)
    pool = Pool(transport, largest=8)
    for numel in (3, 8, 1):
        row = pool.take(numel, torch.float32, "cpu")
        assert row.shape == (numel,)
        assert [buffer.numel() for buffer in pool.buffers] == [8]
        pool.give(row)
    one, two = (pool.take(5, torch.float32, "cpu") for _ in range(2))
    assert one.data_ptr() != two.data_ptr()
    assert [buffer.numel() for buffer in transport.made] == [8, 8]
    other = pool.take(5, torch.float64, "cpu")
    assert other.dtype == torch.float64
    pool.give(other)
    assert pool.take(2, torch.float64, "cpu").data_ptr() == other.data_ptr()
    pool.give(one)
    pool.give(two)
    assert len(pool.buffers) == 3
    assert pool.take(2, torch.float64, "cpu").data_ptr() != other.data_ptr()  # it is lent


def test_ordinary_memory_is_as_large_as_the_row_and_not_kept():
    transport = Own(lasting=False)
    pool = Pool(transport, largest=8)
    row = pool.take(3, torch.float32, "cpu")
    assert row is transport.made[0]
    assert row.numel() == 3
    pool.give(row)
    assert pool.buffers == []

"""A sum over one group of ranks after the other."""

import torch

from helpers.parallel.sums import GlobalSum


class Alike:
    """The transport of some ranks that all have the same number; a sum is made by its `wait`."""

    def __init__(self, size):
        self.size = size

    def all_reduce(self, buffer):
        self.buffer = buffer
        return self

    def wait(self):
        self.buffer *= self.size


def test_every_group_multiplies_the_number_by_its_ranks():
    for sizes, times in (((), 1), ((2,), 2), ((2, 3), 6), ((2, 3, 5), 30)):
        groups = [Alike(size) for size in sizes]
        total = GlobalSum(groups, "cpu", 7.0)
        total.add(torch.tensor(4.0))
        assert total.send().wait() == 11 * times
        assert total.wait() == 11 * times  # a second wait adds nothing
        assert [group.size for group in groups] == list(sizes)  # for the next sum


def test_it_adds_in_float64():
    total = GlobalSum([], "cpu", 2**24)
    total.add(torch.tensor(1.0))
    assert total.wait() == 2**24 + 1
    assert total.wait().dtype == torch.float64

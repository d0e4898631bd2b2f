"""The recorder names the operations that ran, with their formats, forward and backward."""

import torch

from helpers.precision.recorder import Operation, operations_of


def test_operations():
    x = torch.ones(2, 2, requires_grad=True)

    def run():
        (x.bfloat16() @ x.bfloat16()).float().exp().sum().backward()

    assert operations_of(run) == [
        Operation("mm", torch.bfloat16, False),
        Operation("exp", torch.float32, False),
        Operation("sum", torch.float32, False),
        Operation("mul", torch.float32, True),
        Operation("mm", torch.bfloat16, True),
        Operation("mm", torch.bfloat16, True),
        Operation("add", torch.float32, True),
    ]


def test_whole_numbers_are_left_out():
    assert operations_of(lambda: torch.arange(3) + 1) == []


def test_casts_and_views_are_left_out_and_the_first_number_counts():
    x = torch.rand(2, 3)

    def run():
        x.t().contiguous().half().view(6).float().clone()
        x.max(1)  # values and their places

    assert operations_of(run) == [Operation("max", torch.float32, False)]
    torch.ones(1) + 1  # not recorded: the recorder has ended
    assert operations_of(lambda: None) == []

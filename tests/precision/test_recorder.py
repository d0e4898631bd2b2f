"""The recorder names the operations that ran, with their formats, forward and backward."""

import pytest
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


MOVES = {
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "unsqueeze": lambda x: x.unsqueeze(0).squeeze(0),
    "expand": lambda x: x[:1].expand(4, 3),
    "select": lambda x: x[0],
    "split": lambda x: x.split(1),
    "detach": lambda x: x.detach(),
    "reshape": lambda x: x.t().reshape(3, 2),
    "copy": lambda x: torch.empty_like(x).copy_(x),
    "zeros": lambda x: (torch.zeros(2), torch.zeros_like(x)),
    "ones": lambda x: (torch.ones(2), torch.ones_like(x)),
    "empty": lambda x: (torch.empty(2), torch.arange(2.0)),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_what_computes_nothing_is_left_out(move):
    x = torch.rand(2, 3)
    assert operations_of(lambda: move(x)) == []


def test_a_forward_without_gradients_is_no_backward():
    @torch.no_grad()
    def run():
        torch.ones(2).exp()

    assert operations_of(run) == [Operation("exp", torch.float32, False)]


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

"""Bytes that operators move: reads, writes, views, lists, and the optimizers of week 8."""

import pytest
import torch

from helpers.measure.moved import moved_by

ROWS = torch.tensor([3])
A, B, OUT = (torch.ones(10) for _ in range(3))


@pytest.mark.parametrize(
    ("call", "read", "written"),
    [
        (lambda: A + B, 80, 40),
        (lambda: A + A, 40, 40),  # one tensor is read once
        (lambda: A.sum(), 40, 4),
        (lambda: A.view(2, 5).max(1), 40, 2 * (4 + 8)),  # values and places
        (lambda: A[0].item(), 0, 0),  # Python reads a number: no operator
        (lambda: A.add_(B), 80, 40),
        (lambda: A.copy_(B), 40, 40),  # a copy does not read its target
        (lambda: A.fill_(1.0), 0, 40),
        (lambda: A.clone().zero_(), 40, 80),
        (lambda: A[::2] + 1, 20, 20),  # every second number
        (lambda: A.view(2, 5).t()[1:], 0, 0),
        (lambda: A.view(2, 5)[0] + 1, 20, 20),
        (lambda: torch.ones(10), 0, 40),
        (lambda: torch._foreach_mul_([A, B], 2.0), 80, 80),
        (lambda: torch.add(A, B, out=OUT), 80, 40),
        (lambda: torch.add(A, B, out=A), 80, 40),
        (lambda: torch.randn_like(A).normal_(), 0, 80),
        (lambda: torch.empty_like(A), 0, 0),
        (lambda: torch._foreach_zero_([A, B]), 0, 80),
        (lambda: torch.embedding(A.view(5, 2), ROWS), 8 + 8, 8),  # a row of five, and its index
        (lambda: A[ROWS.expand(20)], 40 + 20 * 8, 20 * 4),  # at most the whole table
        (lambda: OUT.index_put_((ROWS,), A[:1]), 8 + 4, 4),
        (lambda: OUT.index_put_((ROWS,), A[:1], accumulate=True), 8 + 4 + 4, 4),
        (lambda: OUT.view(5, 2).index_add_(0, ROWS, B.view(5, 2)[:1]), 8 + 8 + 8, 8),
        (lambda: OUT.view(5, 2).index_fill_(1, ROWS - 2, 0.0), 8 + 8, 8 + 20),
        (lambda: OUT.scatter_(0, ROWS, A[:1]), 8 + 4, 4),
    ],
)
def test_an_operator(call, read, written):
    moved = moved_by(call)
    assert (moved.read, moved.written, moved.total) == (read, written, read + written)


def test_each_call_has_its_name_and_its_bytes():
    def chain():
        B.copy_((A * 2).sum())

    found = [(one.name, one.read, one.written) for one in moved_by(chain).operators]
    assert found == [("mul", 40, 40), ("sum", 40, 4), ("copy_", 4, 40)]


@pytest.mark.parametrize(
    ("form", "scaled", "operators", "read", "written"),
    [
        ({"foreach": False}, False, 9, 48, 32),
        ({"foreach": True}, False, 9, 48, 32),
        ({"fused": True}, False, 2, 16, 12),
        ({"fused": True}, True, 3, 16, 16),  # it writes the gradients, without their scale
    ],
)
def test_adamw(form, scaled, operators, read, written):
    p = torch.nn.Parameter(torch.ones(1000))
    p.grad = torch.ones(1000)
    optimizer = torch.optim.AdamW([p], **form)
    if scaled:
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    optimizer.step()
    moved = moved_by(optimizer.step)
    assert len(moved.operators) == operators
    assert round(moved.read / 1000) == read
    assert round(moved.written / 1000) == written

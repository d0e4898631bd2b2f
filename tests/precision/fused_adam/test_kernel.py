"""The kernels alone, interpreted: the formula, the end of a tensor, and far places."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.precision.fused_adam.launch import formats, launch_step
from helpers.precision.fused_adam.table import Table, Tensors

CPU = torch.device("cpu")
LR, BETA1, BETA2, EPS, DECAY = 0.01, 0.9, 0.999, 1e-8, 0.1
HYPER = [LR, BETA1, BETA2, EPS, DECAY, 1.0, math.log(BETA1), math.log(BETA2)]
GUARD = 77.0


def launched(table, dtype=torch.float32, found=0.0, scale=1.0, low=None):
    constants = formats(dtype, dtype, dtype, low)
    launch_step(table, torch.tensor(found), torch.tensor(scale), constants)


def numbers(length, dtype, step, guard=0):
    """Parameter, gradient, moments, step; numbers after the end that nothing may change."""
    made = torch.randn(4, length + guard, dtype=dtype)
    made[3].abs_()
    made[:, length:] = GUARD
    return Tensors(*(own[:length] for own in made), torch.tensor(float(step))), made


def formula(own, scale=1.0, decay=DECAY):
    """Kingma and Ba, algorithm 1, with decoupled decay."""
    p, g, m, v, t = own[0], own[1] / scale, own[2], own[3], own.step.item() + 1
    m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
    m_hat, v_hat = m / (1 - BETA1**t), v / (1 - BETA2**t)
    return p - LR * (m_hat / (v_hat.sqrt() + EPS) + decay * p), m, v


@pytest.mark.parametrize("shift", [0, 1])  # both paths of the kernel
def test_nothing_beyond_the_end_is_written(shift):
    made = torch.full((4, 32), GUARD)
    made[:, shift : shift + 13] = torch.rand(4, 13)
    before = made.clone()
    low = torch.full((32,), GUARD, dtype=torch.bfloat16)
    kinds = [kind[shift : shift + 13] for kind in (*made, low)]
    own = Tensors(*kinds[:4], torch.tensor(0.0), kinds[4])
    table = Table(CPU, block=8)
    table.fill(HYPER, [own])
    assert table.rows[0, 7] == (shift == 0)
    right = formula(own)
    launched(table, low=torch.bfloat16)
    assert torch.allclose(own.parameter, right[0], rtol=1e-6)
    assert torch.equal(own.low, own.parameter.bfloat16())
    for kind in (*made, low):
        assert (kind[shift + 13 :] == GUARD).all()
        assert (kind[:shift] == GUARD).all()
    assert torch.equal(made[1], before[1])  # the gradient


def test_places_beyond_two_to_the_31():
    """A tensor of more than 2^31 numbers, whose last block alone is in memory and is updated."""
    block = 8
    start = 2**31 + 3 * block
    for length in (block, 5):  # the last block is full, or not
        own, made = numbers(length, torch.float32, 0, guard=3)
        expected = formula(own)
        table = Table(CPU, block)
        table.fill(HYPER, [own])
        table.rows[0, :4] -= start * own.parameter.itemsize  # where such a tensor would begin
        table.rows[0, 6] += start
        table.blocks = torch.tensor([[0, start // block]], dtype=torch.int32)
        launched(table)
        assert torch.allclose(own.parameter, expected[0], rtol=1e-6)
        assert (made[:, length:] == GUARD).all()


def test_more_tensors_than_one_program_counts(monkeypatch):
    monkeypatch.setattr("helpers.precision.fused_adam.launch.ROWS", 2)
    all_own = [numbers(1, torch.float32, step)[0] for step in range(3)]
    expected = [formula(own)[0] for own in all_own]
    table = Table(CPU, block=8)
    table.fill(HYPER, all_own)
    launched(table)
    assert [own.step.item() for own in all_own] == [1, 2, 3]
    for own, right in zip(all_own, expected, strict=True):
        assert torch.allclose(own.parameter, right, rtol=1e-6)

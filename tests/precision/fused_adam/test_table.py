"""The table: rows, blocks, alignment, layouts; and what is uploaded."""

import math
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.precision.fused_adam.table import (
    Table,
    Tensors,
    arranged,
    blocks,
    is_aligned,
    row,
)

CPU = torch.device("cpu")
HYPER = [1e-3, 0.9, 0.999, 1e-8, 0.1, 1.0, math.log(0.9), -math.inf]


def tensors(length=8, low=None):
    own = [torch.zeros(length) for _ in range(4)]
    return Tensors(*own, torch.zeros(()), low)


@given(st.lists(st.integers(0, 40), max_size=6), st.sampled_from([1, 4, 16]))
def test_the_blocks_cover_each_number_once(lengths, block):
    covered = [
        (index, place)
        for index, number in blocks(lengths, block).tolist()
        for place in range(number * block, min((number + 1) * block, lengths[index]))
    ]
    assert covered == [(i, place) for i, length in enumerate(lengths) for place in range(length)]
    assert all(number * block < lengths[index] for index, number in blocks(lengths, block).tolist())


def test_each_pointer_decides_the_alignment_but_the_steps():
    own = tensors()
    flat = torch.zeros(9)
    shifted = flat[1:]  # 4 bytes after a multiple of 16
    assert is_aligned(own)
    for name in ("parameter", "gradient", "exp_avg", "exp_avg_sq", "low"):
        assert not is_aligned(own._replace(**{name: shifted})), name
    assert is_aligned(own._replace(step=flat[1]))
    assert is_aligned(own._replace(parameter=torch.zeros(12)[4:]))  # 16 bytes


def test_a_row_asks_each_tensor_once_for_its_address():
    """For 300 tensors that is a large part of what a step costs the CPU."""
    own = Tensors(*(Mock(**{"data_ptr.return_value": 16 * n}) for n in range(6)))
    own.parameter.numel.return_value = 8
    assert row(own) == [0, 16, 32, 48, 64, 80, 8, 1]
    assert [tensor.data_ptr.call_count for tensor in own] == [1] * 6


def test_a_gpu_copies_from_pinned_memory(monkeypatch):
    """Else the CPU waits for the GPU."""
    pinned, copied = [], []
    pin = {"pin_memory": lambda tensor: pinned.append(id(tensor)) or tensor}
    to = {"to": lambda t, _, non_blocking: copied.append(id(t) if non_blocking else None) or t}
    for name, double in (pin | to).items():
        monkeypatch.setattr(torch.Tensor, name, double)
    Table(torch.device("cuda"), block=4).fill(HYPER, [tensors()])
    assert (len(copied), copied) == (3, pinned)


def test_only_changes_are_uploaded():
    table, own = Table(CPU, block=4), tensors()
    table.fill(HYPER, [own])
    blocks = table.blocks
    assert table.hyper.tolist() == HYPER
    assert table.rows.tolist() == [row(own)]
    table.fill(HYPER, [own])
    assert table.uploads == 3
    moved = own._replace(gradient=torch.zeros(8))
    table.fill(HYPER, [moved])
    rows = table.rows
    assert rows[0, 1] == moved.gradient.data_ptr()
    table.fill([2e-3, *HYPER[1:]], [moved])
    assert (table.uploads, table.hyper[0].item()) == (5, 2e-3)
    assert table.blocks is blocks  # the lengths are the same
    assert table.rows is rows  # a schedule of the learning rate sends 64 bytes
    table.fill(HYPER, [moved, tensors(3)])
    assert table.blocks.tolist() == [[0, 0], [0, 1], [1, 0]]
    table.fill(HYPER, [moved, tensors(5)])  # as many tensors
    assert table.blocks.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert table.blocks.dtype == torch.int32
    table.fill(HYPER, [tensors(5), moved])
    assert table.rows[:, 6].tolist() == [5, 8]


@pytest.mark.parametrize(
    "own",
    [
        [torch.randn(3, 4), torch.randn(4, 3).t()],
        [torch.randn(4, 3).t(), torch.randn(3, 4)],
        [torch.randn(4, 3).t(), torch.randn(4, 3).t()],
        [torch.randn(3, 8)[:, ::2], torch.randn(3, 4)],
        [torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.randn(2, 3, 4, 4)],
        [torch.randn(1, 4).expand(3, 4), torch.randn(3, 4)],
    ],
)
def test_arranged_tensors_have_their_numbers_at_the_same_places(own):
    made = arranged(own)
    for old, new in zip(own, made, strict=True):
        assert torch.equal(old, new)
        assert new.stride() == made[0].stride()
        assert new.untyped_storage().nbytes() >= new.numel() * 4
        largest = sum((n - 1) * step for n, step in zip(new.shape, new.stride(), strict=True))
        assert largest == new.numel() - 1  # dense: no number is left out, and none shared
    if own[0].stride() == own[1].stride():
        assert all(new is old for old, new in zip(own, made, strict=True))

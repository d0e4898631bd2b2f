"""Slots keep what was written while they widen, have no gaps, and are zero where not used."""

import pytest
import torch

from helpers.inference.decoder import slots as module
from helpers.inference.decoder.slots import Slots
from helpers.models.config import GPTConfig

CONFIG = GPTConfig(layers=3, heads=4, kv_heads=2, width=24)  # d = 6
LIKE = torch.empty(0, dtype=torch.float64)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(module, "STEP", 4)


def made(capacity=10, first=0):
    """Slots whose buffers held other numbers before."""
    slots = Slots(CONFIG, 5, capacity, LIKE)
    for buffer in slots._buffers:
        buffer.fill_(float("nan"))
    slots.clear(first)
    return slots


@pytest.mark.parametrize(("first", "width"), [(0, 0), (1, 4), (4, 4), (5, 8), (9, 10), (10, 10)])
def test_a_new_cache_has_room_and_is_zero(first, width):
    slots = made(first=first)
    assert slots.width == width
    assert len(slots.rows) == 3
    for rows in slots.rows:
        assert rows.shape == (2, 5, 2, width, 6)
        assert not rows.any()


def test_widening_keeps_what_was_written():
    slots, generator = made(), torch.Generator().manual_seed(0)
    written = torch.randn(3, 2, 5, 2, 10, 6, generator=generator, dtype=torch.float64)
    for slot in range(10):
        if slot == slots.width:
            slots.widen()
        for rows, one in zip(slots.rows, written, strict=True):
            rows[..., slot, :] = one[..., slot, :]
        for rows, one in zip(slots.rows, written, strict=True):
            assert torch.equal(rows[..., : slot + 1, :], one[..., : slot + 1, :])
            assert not rows[..., slot + 1 :, :].any()
        assert slots.width == min(-(-(slot + 1) // 4) * 4, 10)


def test_keys_and_values_are_views_without_gaps():
    slots = made(first=3)
    for _ in range(2):
        for rows, keys, values in zip(slots.rows, slots.keys, slots.values, strict=True):
            assert rows.is_contiguous()
            rows[0], rows[1] = 1, 2
            assert keys.shape == values.shape == (10, slots.width, 6)
            assert (keys == 1).all()
            assert (values == 2).all()
        slots.widen()
    assert slots.width == 10


def test_blocks_do_not_share_memory():
    slots = made(first=2)
    for _ in range(3):
        for number, rows in enumerate(slots.rows):
            rows.fill_(number)
        assert [rows.unique().tolist() for rows in slots.rows] == [[0], [1], [2]]
        slots.widen()


def test_forgotten_slots_are_zero():
    slots = made(first=8)
    for rows in slots.rows:
        rows.fill_(float("nan"))
    slots.forget(3)
    for rows in slots.rows:
        assert rows[..., :3, :].isnan().all()
        assert not rows[..., 3:, :].any()


def test_bytes_are_those_of_one_buffer_more_than_blocks():
    slots = made()
    assert slots.bytes == 4 * (2 * 5 * 2 * 10 * 6) * 8
    slots.widen()
    assert slots.bytes == 4 * (2 * 5 * 2 * 10 * 6) * 8

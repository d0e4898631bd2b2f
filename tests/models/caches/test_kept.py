"""Bytes that a block keeps, by hand."""

import pytest
import torch

from helpers.models.caches.kept import Kept


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2), (torch.float64, 8)])
def test_every_tensor_counts_in_the_cache_s_own_numbers(dtype, size):
    kept = Kept(per_token=((2, 3), (4, 5)), per_sequence=((6, 7), (2, 3, 4), (5,)))
    assert kept.bytes_per_token(dtype) == (2 * 3 + 4 * 5) * size
    assert kept.bytes_per_sequence(dtype) == (6 * 7 + 2 * 3 * 4 + 5) * size


def test_a_block_that_keeps_nothing_has_no_bytes():
    assert Kept().bytes_per_token(torch.float32) == 0
    assert Kept().bytes_per_sequence(torch.float32) == 0

"""The bytes of a handover, by hand and by the cache's own tensors."""

import pytest

from helpers.plans.handover import HEADER_BYTES, handover_bytes

SIZES = {"layers": 3, "key_heads": 2, "head_width": 8, "block_size": 16, "number_bytes": 4}


@pytest.mark.parametrize(("tokens", "slots"), [(1, 16), (16, 16), (17, 32), (1000, 1008)])
def test_whole_blocks_of_keys_and_values(tokens, slots):
    assert handover_bytes(tokens=tokens, **SIZES) == 32 + slots * (2 * 3 * 2 * 8) * 4
    assert HEADER_BYTES == 32


def test_llama_2_7b_in_16_bits():
    """512 KiB for each token: 2 · 32 layers · 4096 numbers · 2 bytes."""
    sizes = {"layers": 32, "key_heads": 32, "head_width": 128, "number_bytes": 2, "block_size": 1}
    assert handover_bytes(tokens=10, **sizes) - HEADER_BYTES == 10 * 512 * 1024


@pytest.mark.parametrize("name", ["tokens", *SIZES])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        handover_bytes(**{"tokens": 5, **SIZES, name: 0})

"""What autograd saves of a norm is what the counts say."""

import pytest
import torch
from torch import nn

from helpers.models.norm_counts import saved_bytes
from tests.models.steps import bytes_saved

KINDS = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_bytes(kind, width, dtype):
    places = 5
    norm = KINDS[kind](width, dtype=dtype)
    x = torch.randn(places, width, dtype=dtype, requires_grad=True)

    def forward():
        y = norm(x.clone())  # the norm's input has a storage of its own
        return y * y  # saves the result

    expected = places * (saved_bytes(kind, width, dtype) + width * dtype.itemsize)
    assert bytes_saved(forward, norm) == expected

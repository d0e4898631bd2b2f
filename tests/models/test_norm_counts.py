"""What autograd saves of a norm is what the counts say."""

import pytest
import torch
from torch import nn

from helpers.measure.memory import SavedTensors, own, storages
from helpers.models.norm_counts import saved_bytes

KINDS = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_bytes(kind, width, dtype):
    places = 5
    norm = KINDS[kind](width, dtype=dtype)
    x = torch.randn(places, width, dtype=dtype, requires_grad=True)
    excepted = storages(own([norm]))
    saved = SavedTensors(lambda: excepted)
    with saved:
        y = norm(x.clone())  # the norm's input has a storage of its own
        y = y * y  # saves the result
    assert saved.peak == places * (saved_bytes(kind, width, dtype) + width * dtype.itemsize)
    del y

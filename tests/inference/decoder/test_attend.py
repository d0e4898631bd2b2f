"""Attention of one token against PyTorch's own."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from helpers.inference.decoder.attend import attend_one


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("keys", [1, 7])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_fused_kernels_result(groups, keys, masked):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(4, groups, 5, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 4, 9, 5, generator=generator, dtype=torch.float64)[:, :, :keys]
    bias = None
    if masked:
        bias = torch.zeros(4, 1, keys, dtype=torch.float64)
        bias[1, 0, : keys - 1] = bias[2, 0, : keys // 2] = float("-inf")
    expected = scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    out = torch.empty(4, groups, 5, dtype=torch.float64)
    found = attend_one(q, k, v, bias, out)
    assert found.data_ptr() == out.data_ptr()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(attend_one(q, k, v, bias), found)

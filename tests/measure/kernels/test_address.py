"""A tensor without memory of its own is refused before a kernel reads from address 0."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from helpers.measure.kernels.address import address


def test_a_wrapper_has_no_address():
    plain = torch.ones(2)
    assert address(plain) == address(torch.nn.Parameter(plain)) == plain.data_ptr()
    with pytest.raises(ValueError, match="a kernel cannot read a TwoTensor"):
        address(TwoTensor(plain, plain.clone()))


def test_every_caller_of_a_kernel_refuses_one():
    """As FSDP2's DTensors are."""
    pytest.importorskip("triton", reason="Triton is there on Linux only")
    from helpers.models.scan.kernel import selective_forward
    from helpers.precision.fused_adam.optimizer import FusedAdamW

    wrapped = TwoTensor(torch.ones(2, 2), torch.ones(2, 2))
    p = torch.nn.Parameter(wrapped)
    p.grad = wrapped
    with pytest.raises(ValueError, match="pass its local tensor"):
        FusedAdamW([p]).step()
    x, A = torch.ones(1, 2, 2), torch.ones(2, 2)
    with torch.no_grad(), pytest.raises(ValueError, match="pass its local tensor"):
        selective_forward(x, x, wrapped, x, x)
    assert selective_forward(x, x, A, x, x)[0].shape == x.shape

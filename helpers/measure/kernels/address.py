"""The address of a tensor for a kernel, and a refusal of tensors that have none."""

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def address(tensor: torch.Tensor) -> int:
    """The address of a tensor's first number.

    Raises:
        ValueError: the tensor is a wrapper, such as a DTensor. Its own address is 0, and a kernel
            that reads there ends the process.
    """
    if is_traceable_wrapper_subclass(tensor):
        raise ValueError(
            f"a kernel cannot read a {type(tensor).__name__}, which has no memory of its own: pass "
            "its local tensor, or use PyTorch's own operations"
        )
    return tensor.data_ptr()

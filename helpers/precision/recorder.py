"""Record which operations a function runs, and the format of each result."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# They change the format or the shape, and compute nothing.
NO_ARITHMETIC = frozenset(
    (
        *("_to_copy", "view", "_unsafe_view", "_reshape_alias", "t", "transpose", "permute"),
        *("unsqueeze", "squeeze", "expand", "slice", "select", "split", "alias", "detach"),
        *("clone", "copy_", "lift_fresh", "empty", "empty_like", "new_empty_strided"),
        *("zeros", "zeros_like", "ones", "ones_like", "arange"),
    )
)


@dataclass(frozen=True)
class Operation:
    """An operation that ran: its name in ATen, PyTorch's library of operations, and its format.

    Attributes:
        name: for example "mm", the product of two matrices.
        dtype: of its first result that is floating-point.
        backward: whether it ran in a backward.
    """

    name: str
    dtype: torch.dtype
    backward: bool


class Recorder(TorchDispatchMode):
    """Record every floating-point operation, of the backward too, inside of `with Recorder():`."""

    def __init__(self):
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        floats = [x.dtype for x in tree_leaves(result) if is_float(x)]
        if floats and name not in NO_ARITHMETIC:
            backward = torch._C._current_graph_task_id() != -1
            self.operations.append(Operation(name, floats[0], backward))
        return result


def is_float(value) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def operations_of(function: Callable[[], object]) -> list[Operation]:
    """Run the function, and list its floating-point operations in their order."""
    with Recorder() as recorder:
        function()
    return recorder.operations

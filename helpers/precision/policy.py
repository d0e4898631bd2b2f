"""A small autocast: choose the number format of each operation, by three lists.

PyTorch's `torch.autocast` does the same below Python, with longer lists. Parameters stay in
float32. Their casts are part of the graph, so gradients return to float32 in the backward.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map


def names(line: str) -> frozenset[str]:
    return frozenset(line.split())


# Matrix products: nearly all of the arithmetic, and each result is a sum in float32 that is rounded
# once.
LOW = names(
    "linear matmul __matmul__ __rmatmul__ mm bmm addmm addbmm baddbmm conv1d conv2d conv3d "
    "scaled_dot_product_attention"
)
# Long sums, exponentials and differences of near numbers: 8 or 11 significant bits are too few.
WIDE = names(
    "softmax log_softmax cross_entropy nll_loss mse_loss binary_cross_entropy_with_logits "
    "layer_norm rms_norm exp expm1 log log1p pow rsqrt sum mean prod cumsum norm logsumexp var std"
)
# Several inputs of different formats: none of them may lose bits.
WIDEST = names("cat stack index_put scatter_add")


@dataclass
class Policy(TorchFunctionMode):
    """Run operations in the format that their list names, inside of `with Policy(): …`.

    An operation of no list runs in the format of its inputs, and PyTorch promotes mixed inputs.
    Numbers in float64 and whole numbers stay as they are.

    Args:
        dtype: the low format: bfloat16 or float16.
        low: operations that cast their inputs to `dtype`.
        wide: operations that cast their inputs to float32.
        widest: operations that cast their inputs to the widest format among them.

    Raises:
        ValueError: an operation is in two lists, or `dtype` is not a low format.
    """

    dtype: torch.dtype = torch.bfloat16
    low: Iterable[str] = LOW
    wide: Iterable[str] = WIDE
    widest: Iterable[str] = WIDEST

    def __post_init__(self):
        super().__init__()
        if self.dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"choose bfloat16 or float16 as the low format, not {self.dtype}")
        self.low, self.wide, self.widest = map(frozenset, (self.low, self.wide, self.widest))
        both = sorted(self.low & self.wide | self.low & self.widest | self.wide & self.widest)
        if both:
            raise ValueError(f"in two lists: {', '.join(both)}; keep each operation in one")

    def __torch_function__(self, operation, types, args=(), kwargs=None):
        name = getattr(operation, "__name__", "")
        to = self.format_for(name, (args, kwargs))
        if to is not None:
            args, kwargs = tree_map(lambda value: cast(value, to), (args, kwargs))
        return operation(*args, **(kwargs or {}))

    def format_for(self, name: str, inputs) -> torch.dtype | None:
        """Look up the format of an operation's inputs; None leaves them as they are."""
        if name in self.low:
            return self.dtype
        if name in self.wide:
            return torch.float32
        if name in self.widest:
            formats = {x.dtype for x in tree_leaves(inputs) if castable(x)}
            return torch.float32 if len(formats) > 1 else None
        return None


def castable(value) -> bool:
    """Whether it is a tensor in float32, bfloat16 or float16."""
    formats = (torch.float32, torch.bfloat16, torch.float16)
    return isinstance(value, torch.Tensor) and value.dtype in formats


def cast(value, to: torch.dtype):
    return value.to(to) if castable(value) else value

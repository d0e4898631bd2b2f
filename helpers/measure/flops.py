"""Count the FLOPs of a step (forward, recomputed, backward) from the operators that really run.

PyTorch's `FlopCounterMode` sees each operator below autograd, and sums a formula per operator. Like
the papers, it counts matrix products and convolutions (a multiply-add is 2 FLOPs), but no
element-wise operators. It has no formula for a matrix and a vector, nor for the CPU's fused
attention, and would count 0. Here the latter gets the formula of CUDA's fused attention.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.utils import checkpoint

from helpers.measure.draw import bars, table, text

# B batch, H query heads, T queries, S keys, D and V the widths of a head's keys and values. With
# grouped queries, keys and values have fewer heads; the kernel repeats them, so each query head has
# its own products.


def attention_flops(query, key, value) -> int:
    """FLOPs of softmax(Q Kᵀ) V: two products per head, 4 B H T² D if T = S and D = V.

    A causal mask does not reduce the count, as in PyTorch's own formula and in Narayanan et al.
    (2021), section 5.1. A kernel that skips masked blocks may need only half as many.

    Args:
        query, key, value: shapes (B, H, T, D), (B, H or fewer, S, D), (B, H or fewer, S, V).
    """
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


def attention_backward_flops(query, key, value) -> int:
    """FLOPs of attention's backward: five products per head, 10 B H T² D if T = S and D = V.

    The fused kernel does not save the scores Q Kᵀ, so it computes them again (Dao et al. 2022,
    section 3.1). The other products are the gradients of the probabilities, of V, of Q and of K.
    """
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (3 * width + 2 * value[3])


def _cpu_attention(query, key, value, *args, out_shape=None, **kwargs):
    return attention_flops(query, key, value)


def _cpu_attention_backward(grad_out, query, key, value, *args, out_shape=None, **kwargs):
    return attention_backward_flops(query, key, value)


def _matrix_vector(matrix, vector, *, out_shape=None):
    return 2 * matrix[0] * matrix[1]


MORE = {
    "mv": _matrix_vector,
    "_scaled_dot_product_flash_attention_for_cpu": _cpu_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _cpu_attention_backward,
}
PARTS = ("forward", "recomputed", "backward")


@dataclass(frozen=True, kw_only=True)
class Flops:
    """The result of `flops_of`, in FLOPs (not FLOP/s).

    Attributes:
        forward: outside any backward.
        recomputed: the forward, repeated inside the backward (activation checkpointing).
        backward: gradients.
        operators: operator -> FLOPs, all parts together.
    """

    forward: int
    recomputed: int
    backward: int
    operators: dict[str, int] = field(default_factory=dict)

    @property
    def model(self) -> int:
        """FLOPs without recomputation: for model FLOPs utilization (Chowdhery et al. 2022, B)."""
        return self.forward + self.backward

    @property
    def total(self) -> int:
        """All FLOPs that the hardware computed: for hardware FLOPs utilization."""
        return self.model + self.recomputed

    def _rows(self) -> dict[str, str]:
        rows = {part: f"{getattr(self, part):,}" for part in PARTS}
        return rows | {"total": f"{self.total:,}"}

    def __repr__(self):
        return text("FLOPs", self._rows())

    def _repr_html_(self):
        return table("FLOPs", self._rows())

    def plot(self):
        """Plot a bar per operator. Returns a Picture."""
        return bars("FLOPs by operator", self.operators, "FLOPs")


def flops_of(step: Callable[[], object]) -> Flops:
    """Run `step()` once and count its FLOPs in this process.

    With DTensors, PyTorch counts the products of the whole tensor, not of this rank's shard.

    Args:
        step: a function without arguments. Backward and optimizer step count if `step` runs them.
    """
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    parts: Counter = Counter()
    formulas = dict(flop_registry)
    for name, formula in MORE.items():
        operator = getattr(torch.ops.aten, name, None)
        if operator is not None and operator not in formulas:  # a later PyTorch may have its own
            formulas[operator] = _on_shapes(formula)
    by_part = {operator: _counted(formula, parts) for operator, formula in formulas.items()}
    with FlopCounterMode(display=False, custom_mapping=by_part) as counter:
        step()
    operators = {
        str(operator): flops
        for operator, flops in counter.get_flop_counts().get("Global", {}).items()
    }
    return Flops(**{part: parts[part] for part in PARTS}, operators=operators)


def _on_shapes(formula):
    """Adapt a formula of shapes to FlopCounterMode's call, which passes tensors and the result."""

    def raw(*args, out_val=None, **kwargs):
        return formula(*(getattr(arg, "shape", arg) for arg in args), **kwargs)

    return raw


def _counted(formula, parts: Counter):
    """Wrap a formula, so that it also adds its FLOPs to the current part of the step."""

    def counted(*args, **kwargs):
        flops = formula(*args, **kwargs)
        parts[_part()] += flops
        return flops

    counted._get_raw = True  # pass tensors: the registry's formulas take the shapes themselves
    return counted


def _part() -> str:
    """The part of the step to which the operator that just ran belongs.

    Inside a backward, gradients are off unless a checkpoint repeats its forward. (A backward with
    create_graph=True therefore counts as recomputation.) They are also off in the forward of an
    `autograd.Function`, so there the callers decide.
    """
    if torch._C._current_graph_task_id() == -1:  # torch.utils.module_tracker uses this test too
        return "forward"
    return "recomputed" if torch.is_grad_enabled() or _in_a_checkpoint() else "backward"


def _in_a_checkpoint() -> bool:
    """Whether a checkpoint (not a reentrant one) that unpacks its tensors is among the callers."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "unpack_hook" and code.co_filename == checkpoint.__file__:
            return True
        frame = frame.f_back
    return False

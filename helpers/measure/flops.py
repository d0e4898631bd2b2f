"""FLOPs of a step, forward, recomputed and backward, from the operators that really run.

PyTorch's `FlopCounterMode` sees each operator below autograd and adds up a formula by operator. It
counts matrix products and convolutions (a multiply-add is 2 FLOPs) and nothing element by element,
as the papers do. It has no formula for the fused attention of the CPU, which it thus counts as 0;
here it gets the one that it has for CUDA's.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from helpers.measure.draw import bars, table, text

# One operator is one run of a kernel: B batch, H query heads, T queries, S keys, D and V the widths
# of a head's keys and values. Keys and values may have fewer heads (grouped queries): the kernel
# repeats them, so the products are as many as the query heads.


def attention_flops(query, key, value) -> int:
    """FLOPs of softmax(Q Kᵀ) V: two products for each head, 4 B H T² D where T = S and D = V.

    A causal mask is not subtracted, as in PyTorch's own formula and in Narayanan et al. (2021),
    section 5.1; a kernel that skips masked blocks does down to half of it.

    Args:
        query, key, value: shapes (B, H, T, D), (B, H or fewer, S, D), (B, H or fewer, S, V).
    """
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


def attention_backward_flops(query, key, value) -> int:
    """FLOPs of the backward of `attention_flops`: five products, 10 B H T² D where T = S and D = V.

    The scores Q Kᵀ again, since the fused kernel keeps none (Dao et al. 2022, section 3.1), then
    the gradients of the probabilities, of V, of Q and of K.
    """
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (3 * width + 2 * value[3])


def _cpu_attention(query, key, value, *args, out_shape=None, **kwargs):
    return attention_flops(query, key, value)


def _cpu_attention_backward(grad_out, query, key, value, *args, out_shape=None, **kwargs):
    return attention_backward_flops(query, key, value)


ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": _cpu_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _cpu_attention_backward,
}
PARTS = ("forward", "recomputed", "backward")


@dataclass(frozen=True, kw_only=True)
class Flops:
    """What `flops_of` counted, in FLOPs (not FLOP/s).

    Attributes:
        forward: outside any backward.
        recomputed: forward done again inside the backward (activation checkpointing).
        backward: gradients.
        operators: operator -> FLOPs, all parts.
    """

    forward: int
    recomputed: int
    backward: int
    operators: dict[str, int] = field(default_factory=dict)

    @property
    def model(self) -> int:
        """Without what was recomputed: for model FLOPs utilization (Chowdhery et al. 2022, B)."""
        return self.forward + self.backward

    @property
    def total(self) -> int:
        """All that the hardware did: for hardware FLOPs utilization."""
        return self.model + self.recomputed

    def _rows(self) -> dict[str, str]:
        rows = {part: f"{getattr(self, part):,}" for part in PARTS}
        return rows | {"total": f"{self.total:,}"}

    def __repr__(self):
        return text("FLOPs", self._rows())

    def _repr_html_(self):
        return table("FLOPs", self._rows())

    def plot(self):
        """A bar for each operator. Returns a Picture."""
        return bars("FLOPs by operator", self.operators, "FLOPs")


def flops_of(step: Callable[[], object]) -> Flops:
    """Run `step()` once and count its FLOPs on this process.

    With DTensor arguments PyTorch counts the whole tensor's products, not this rank's part of them.

    Args:
        step: takes no argument; its backward and its optimizer's step belong to it, if it has them.
    """
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    parts: Counter = Counter()
    formulas = dict(flop_registry)
    for name, formula in ATTENTION.items():
        operator = getattr(torch.ops.aten, name, None)
        if operator is not None and operator not in formulas:  # a later PyTorch may have its own
            formulas[operator] = _on_shapes(formula)
    by_part = {operator: _counted(formula, parts) for operator, formula in formulas.items()}
    with FlopCounterMode(display=False, custom_mapping=by_part) as counter:
        step()
    operators = {
        str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()
    }
    return Flops(**{part: parts[part] for part in PARTS}, operators=operators)


def _on_shapes(formula):
    """A formula on shapes, as FlopCounterMode calls it: with the tensors, and the result."""

    def raw(*args, out_val=None, **kwargs):
        return formula(*(getattr(arg, "shape", arg) for arg in args), **kwargs)

    return raw


def _counted(formula, parts: Counter):
    """The formula, which also adds to the part of the step that it is called in."""

    def counted(*args, **kwargs):
        flops = formula(*args, **kwargs)
        parts[_part()] += flops
        return flops

    counted._get_raw = True  # it takes the tensors: the registry's formulas find their shapes
    return counted


def _part() -> str:
    """Which part of a step the operator that just ran belongs to.

    Inside a backward gradients are off, unless a checkpoint runs its forward again. (A backward
    with create_graph=True is taken for a recomputation.)
    """
    if torch._C._current_graph_task_id() == -1:  # as torch.utils.module_tracker tells
        return "forward"
    return "recomputed" if torch.is_grad_enabled() else "backward"

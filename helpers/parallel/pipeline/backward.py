"""A backward in two parts: the gradient of the input now, the gradients of the weights later.

Another rank waits for the gradient of the input. Nobody waits for the gradients of the weights: the
rank computes them when it would be idle. Most of that work is in linear modules. With y = x Wᵀ and
the gradient g of y, the first part computes g W, and keeps x and g. The second part computes gᵀ x,
and adds it to `.grad` in the same operation. All other gradients (of norms and biases) belong to
the first part, because they are cheap.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2, for I and
W.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge
from torch.nn import functional


class Product(NamedTuple):
    """The gradient of a weight (F, D) that is still to compute: gᵀ x, with g (n, F), x (n, D)."""

    weight: nn.Parameter
    gradient: torch.Tensor
    x: torch.Tensor


class TwoParts:
    """Divide the backwards of a module in two parts. It replaces the forward of linear modules.

    A weight that another kind of module uses too belongs to the first part. So does the weight of a
    hand-written `autograd.Function`.

    Args:
        module: a stage. A module of it may also have an attribute `product`, a function of x and
            the weight that it calls for x Wᵀ.

    Attributes:
        delayed: the weights that belong to the second part.
    """

    def __init__(self, module: nn.Module):
        self.kept: list[Product] | None = None  # of the running first part
        linears = {m for m in module.modules() if isinstance(m, nn.Linear) or hasattr(m, "product")}
        others = {
            p for m in module.modules() if m not in linears for p in m.parameters(recurse=False)
        }
        self.delayed: set[nn.Parameter] = set()
        for linear in linears:
            if linear.weight not in others:
                self.delayed.add(linear.weight)
                self.replace(linear)
        self.others = [p for p in module.parameters() if p not in self.delayed]

    def replace(self, linear: nn.Module):
        if isinstance(linear, nn.Linear):
            linear.forward = lambda x: self.product(x, linear.weight, linear.bias)
        else:
            linear.product = self.product

    def product(self, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None = None):
        """x Wᵀ (+ bias), as `functional.linear`."""
        y = _Product.apply(self, x, weight)
        return y if bias is None else y + bias

    def first(
        self, root: GradientEdge, x: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, list[tuple[nn.Parameter, torch.Tensor]], list[Product]]:
        """Compute the gradient of the input, given that of the output. It frees the graph.

        Args:
            root: the output.
            x: the input.

        Returns:
            The gradient; the other parameters with their gradients; and what the second part needs.
        """
        others = [p for p in self.others if p.requires_grad]
        kept = self.kept = []
        try:
            of_x, *found = torch.autograd.grad([root], [x, *others], [gradient], allow_unused=True)
        finally:
            self.kept = None
        return of_x, [(p, g) for p, g in zip(others, found, strict=True) if g is not None], kept


def second(kept: list[Product]) -> Iterator[nn.Parameter]:
    """Add the gradients of the weights, and free what they needed. Yields each weight when done."""
    while kept:
        weight, gradient, x = kept.pop(0)
        if weight.grad is None:
            weight.grad = gradient.t() @ x
        else:
            weight.grad.addmm_(gradient.t(), x)
        if all(weight is not other.weight for other in kept):
            yield weight


class _Product(torch.autograd.Function):
    """x Wᵀ, without the gradient of W if the backward keeps it for later."""

    @staticmethod
    def forward(ctx, parts: TwoParts, x, weight):
        ctx.parts, ctx.weight = parts, weight
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        _, wants_x, wants_weight = ctx.needs_input_grad
        of_x = gradient @ weight if wants_x else None
        of_weight = None
        if wants_weight:
            rows = (t.detach().flatten(0, -2) for t in (gradient, x))
            product = Product(ctx.weight, *rows)
            if ctx.parts.kept is None:  # this backward is whole
                of_weight = product.gradient.t() @ product.x
            else:
                ctx.parts.kept.append(product)
        return None, of_x, of_weight

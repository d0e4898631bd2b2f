"""A backward in two parts: the gradient of the input now, the gradients of the weights later.

Another rank waits for the gradient of the input. No rank waits for the gradients of the weights: a
rank computes them when it would be idle. Most of that work is in linear modules. With y = x Wᵀ and
the gradient g of y, the first part computes g W, and keeps g and x. The second part computes gᵀ x
and adds it to `.grad` in one operation. The first part computes all other gradients (of norms and
biases), because they are cheap, and the second part adds them.

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


class Share(NamedTuple):
    """What a backward adds to a parameter's gradient: gᵀ x, with g (n, F) and x (n, D); or g."""

    parameter: nn.Parameter
    g: torch.Tensor
    x: torch.Tensor | None = None


class TwoParts:
    """Divide the backwards of a module in two parts. It replaces the forwards of linear modules.

    The products of hand-written backwards (an `autograd.Function`) belong to the first part.

    Args:
        module: a stage. A module of it that is not an nn.Linear, but multiplies by a weight, may
            have an attribute `product`, the function that it calls for x Wᵀ.
    """

    def __init__(self, module: nn.Module):
        self.parameters = list(module.parameters())
        self.kept: list[Share] | None = None  # by a first part that is running
        for linear in module.modules():
            if type(linear) is nn.Linear:  # one that rounds has a product of its own
                self.replace_forward(linear)
            elif hasattr(linear, "product"):
                linear.product = self.product

    def replace_forward(self, linear: nn.Linear):
        linear.forward = lambda x: self.product(x, linear.weight, linear.bias)

    def product(self, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None = None):
        """x Wᵀ + bias, as `functional.linear`."""
        y = _Product.apply(self, x, weight)
        return y if bias is None else y + bias

    def first(
        self, root: GradientEdge, x: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, list[Share]]:
        """Compute the gradient of the input, given that of the output. It frees the graph.

        Args:
            root: the output.
            x: the input.

        Returns:
            The gradient, and what the second part needs.
        """
        trained = [p for p in self.parameters if p.requires_grad]
        kept = self.kept = []
        try:
            of_x, *others = torch.autograd.grad(
                [root], [x, *trained], [gradient], allow_unused=True
            )
        finally:
            self.kept = None
        found = zip(trained, others, strict=True)
        return of_x, kept + [Share(p, g) for p, g in found if g is not None]


def second(kept: list[Share]) -> Iterator[nn.Parameter]:
    """Add the gradients of the parameters, and free what they needed.

    Yields each parameter when its gradient is complete.
    """
    while kept:
        p, g, x = kept.pop(0)
        if p.grad is None:
            # in the parameter's memory layout, as autograd does: a fused optimizer relies on it
            p.grad = g.contiguous() if x is None else g.t() @ x
        elif x is None:
            p.grad.add_(g)
        else:
            torch.addmm(p.grad, g.t(), x, out=p.grad)
        if all(p is not other.parameter for other in kept):
            yield p


class _Product(torch.autograd.Function):
    """x Wᵀ. A first part keeps what the gradient of W needs, and does not compute it."""

    @staticmethod
    def forward(ctx, parts: TwoParts, x, weight):
        ctx.parts, ctx.parameter = parts, weight
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        _, wants_x, wants_weight = ctx.needs_input_grad
        of_x = gradient @ weight if wants_x else None
        if not wants_weight:
            return None, of_x, None
        rows = gradient.flatten(0, -2), x.detach().flatten(0, -2)
        if ctx.parts.kept is None:  # this backward is whole
            return None, of_x, rows[0].t() @ rows[1]
        ctx.parts.kept.append(Share(ctx.parameter, *rows))
        return None, of_x, None

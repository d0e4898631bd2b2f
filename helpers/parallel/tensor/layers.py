"""The mathematics of tensor-parallel layers, with a backward that overlaps its messages.

A column-parallel layer has rows of W (columns of Wᵀ) and computes some of the outputs from the
whole input. A row-parallel layer has columns of W, and computes partial sums of all outputs from
some of the inputs. Column then row needs one sum: after the second layer.

B  sequences        T  tokens of a sequence        D  width of a token's vector
N  ranks            F  inner width of the MLP
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from helpers.comm.regions import Ready
from helpers.models.attention import FanOut
from helpers.parallel.tensor.regions import Whole


class ColumnParallel(FanOut):
    """Apply several column-parallel linear modules to one input, with one message for all.

    Args:
        region: where the input comes from.
        overlap: compute the weights' gradients while the input's gradient is on its way.
    """

    def __init__(self, region: Whole, overlap: bool = True):
        super().__init__()
        self.region, self.overlap = region, overlap

    def forward(self, x: torch.Tensor, *linears: nn.Linear) -> Sequence[torch.Tensor]:
        """x (B, T or t, D), each weight (F/N, D): outputs (B, T, F/N)."""
        if not self.overlap:
            whole = self.region.enter(x)
            return [linear(whole) for linear in linears]
        weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears]
        return _Columns.apply(self.region, x, len(linears), *weights, *biases)


class Column(nn.Module):
    """One column-parallel linear module that is called itself, so that its hooks run.

    Args:
        linear: has this rank's rows, (F/N, D).
        fan_out: computes it.
    """

    def __init__(self, linear: nn.Linear, fan_out: ColumnParallel):
        super().__init__()
        self.weight, self.bias, self.fan_out = linear.weight, linear.bias, fan_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T or t, D) to (B, T, F/N)."""
        (y,) = self.fan_out(x, self)
        return y


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, region, x, count, *parameters):
        ctx.region, weights, biases = region, parameters[:count], parameters[count:]
        ctx.biased = [bias is not None for bias in biases]

        def products(whole):
            pairs = zip(weights, biases, strict=True)
            return [functional.linear(whole, weight, bias) for weight, bias in pairs]

        whole, outputs = region.multiply_in(x, products, keep=region.keeps_whole)
        ctx.save_for_backward(whole if region.keeps_whole else x, *weights)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        region, (x, *weights) = ctx.region, ctx.saved_tensors
        _, wants_x, _, *wants = ctx.needs_input_grad
        whole = Ready(x)
        if any(wants[: len(weights)]) and not region.keeps_whole:
            whole = region.inward(x)  # on its way again
        gradient_x = None
        if wants_x:
            gradient_x = region.multiply_out(
                list(gradients), lambda parts: sum_of_products(parts, weights)
            )
        rows = whole.wait().flatten(0, -2)  # (B T, D)
        of_weights = [
            gradient.flatten(0, -2).t() @ rows if wanted else None
            for gradient, wanted in zip(gradients, wants, strict=False)
        ]
        of_biases = [
            gradient.flatten(0, -2).sum(0) if biased and wanted else None
            for gradient, biased, wanted in zip(
                gradients, ctx.biased, wants[len(weights) :], strict=True
            )
        ]
        return None, gradient_x and gradient_x.wait(), None, *of_weights, *of_biases


def sum_of_products(gradients, weights) -> torch.Tensor:
    """The gradient of the input of several linear modules: the sum of g W, (B, T, D)."""
    total = gradients[0] @ weights[0]
    for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
        total.flatten(0, -2).addmm_(gradient.flatten(0, -2), weight)
    return total


class RowParallel(nn.Module):
    """A linear module with some of the inputs: the ranks' results are partial sums.

    The bias is added once, after the sum.

    Args:
        linear: has this rank's columns, (D, F/N), and the whole bias.
        region: where the result goes.
        overlap: begin the sum of the output without a copy, and write the backward by hand.
    """

    def __init__(self, linear: nn.Linear, region: Whole, overlap: bool = True):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.region, self.overlap = region, overlap
        if not overlap:
            self.product = functional.linear  # a pipeline may divide its backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, F/N) to (B, T or t, D)."""
        if self.overlap:
            y = _Rows.apply(self.region, x, self.weight)
        else:
            y = self.region.leave(self.product(x, self.weight))
        return y if self.bias is None else y + self.bias


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, region, x, weight):
        ctx.region = region
        ctx.save_for_backward(x, weight)
        return region.multiply_out([x], lambda parts: functional.linear(parts[0], weight)).wait()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        wants_x, wants_weight = ctx.needs_input_grad[1:]
        whole, (gradient_x,) = ctx.region.multiply_in(
            gradient,
            lambda whole: [whole @ weight if wants_x else whole[..., :0]],
            keep=wants_weight,
        )
        gradient_weight = None
        if wants_weight:
            gradient_weight = whole.flatten(0, -2).t() @ x.flatten(0, -2)
        gradient_x = gradient_x if wants_x else None
        return None, gradient_x, gradient_weight

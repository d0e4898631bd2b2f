"""Train linear layers with 8-bit numbers, emulated: values are rounded, products stay wider.

The recipe of Micikevicius et al. 2022: inputs and weights in E4M3, which has more significant bits;
gradients in E5M2, which has more range. Each tensor has a scale, so that its largest number is near
the format's largest. The scale follows from the largest numbers of the last steps, because the
present one is known only after the tensor has been computed.

An 8-bit matrix product adds in float32, and so does this emulation. It costs time here, where
hardware saves it.
"""

from collections import deque

import torch
from torch import nn
from torch.nn import functional

from helpers.precision.formats import E4M3, E5M2, Format
from helpers.precision.rounding import nearest


class DelayedScale:
    """A tensor's scale, from the largest magnitudes (amax) of its last values.

    Args:
        form: the 8-bit format.
        history: how many values count.
    """

    def __init__(self, form: Format, history: int = 16):
        self.form = form
        self.amax: deque[float] = deque(maxlen=history)

    @property
    def scale(self) -> float:
        """The factor: a power of two, so that scaling itself rounds nothing. 1 before any value."""
        largest = max(self.amax, default=0.0)
        if largest == 0:
            return 1.0
        exponent = torch.frexp(torch.tensor(self.form.largest / largest, dtype=torch.float64))[1]
        return 2.0 ** (int(exponent) - 1)  # at most form.largest / largest

    def round(self, x: torch.Tensor, note: bool = True) -> torch.Tensor:
        """Round a tensor to the format, by the scale so far; then note its largest magnitude.

        Numbers that are larger than all of the history saturate.

        Args:
            note: False leaves the history as it is.
        """
        before = self.amax.copy()
        present = float(x.detach().abs().max()) if x.numel() else 0.0
        if not self.amax and present < float("inf"):
            self.amax.append(present)  # without a history, use the present value
        scale = self.scale
        # In float64: of tiny numbers, float32 could not hold the scale.
        rounded = nearest(x.double() * scale, self.form, saturate=True) / scale
        if present < float("inf"):  # not NaN either
            self.amax.append(present)
        self.amax = self.amax if note else before
        return rounded.to(x.dtype)


class RoundInForward(torch.autograd.Function):
    """Round a tensor in the forward. The backward passes the gradient on unchanged."""

    @staticmethod
    def forward(ctx, x, scale: DelayedScale, note: bool):
        return scale.round(x, note)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class RoundInBackward(torch.autograd.Function):
    """Pass a tensor on unchanged. The backward rounds its gradient."""

    @staticmethod
    def forward(ctx, x, scale: DelayedScale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.scale.round(gradient), None


class EmulatedLinear(nn.Linear):
    """A linear layer whose three matrix products have 8-bit inputs: forward, and both gradients."""

    @classmethod
    def of(cls, linear: nn.Linear) -> "EmulatedLinear":
        """Make one with the same parameters."""
        made = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        made.input, made.weights = DelayedScale(E4M3), DelayedScale(E4M3)
        made.gradient = DelayedScale(E5M2)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        note = torch.is_grad_enabled()  # an evaluation does not change the training
        x = RoundInForward.apply(x, self.input, note)
        weight = RoundInForward.apply(self.weight, self.weights, note)
        y = RoundInBackward.apply(functional.linear(x, weight), self.gradient)
        return y if self.bias is None else y + self.bias


def emulate_fp8(model: nn.Module):
    """Replace the linear layers of a model's blocks, in place. The head stays as it is.

    Raises:
        ValueError: the blocks have no plain `nn.Linear`.
    """
    blocks = [module for name, module in model.named_modules() if name.endswith("blocks")]
    found = [
        (parent, name, child)
        for block in blocks
        for parent in block.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    if not found:
        raise ValueError("no plain nn.Linear in the model's blocks: fp8 emulation replaces these")
    for parent, name, child in found:
        setattr(parent, name, EmulatedLinear.of(child))

"""Round numbers to a format: to the nearest number, or to one of the two neighbours at random.

The results keep the input's dtype, so they are the format's numbers in a wider format. This
emulates formats that the machine does not have.
"""

import torch

from helpers.precision.formats import Format


def nearest(x: torch.Tensor, to: Format, *, saturate: bool = False) -> torch.Tensor:
    """Round each number to the format's nearest number. Of two equally near ones, take the even.

    A number is even if its last bit is zero. Numbers that would round beyond the largest become
    infinite, or NaN in a format without infinities.

    Args:
        x: float32 or float64, any shape. Not narrower than the format.
        saturate: whether numbers beyond the largest, infinity too, become the largest instead.
            Hardware has both modes for E4M3; PyTorch's conversion saturates in some versions.
    """
    spacing = to.spacing(x)
    rounded = torch.round(x.double() / spacing) * spacing  # torch.round takes the even one
    if saturate:
        return rounded.clamp(-to.largest, to.largest).to(x.dtype)
    return beyond(rounded, to).to(x.dtype)


def neighbours(x: torch.Tensor, of: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the format's largest number that is at most x, and its smallest that is at least x.

    Both are x itself if x is a number of the format. Beyond the largest number, one of the two is
    the largest number and the other is infinite, or NaN in a format without infinities.
    """
    scaled = x.double() / of.spacing(x)
    below, above = (cut(scaled) * of.spacing(x) for cut in (torch.floor, torch.ceil))
    finite = x.isfinite()
    below = torch.where(finite & (below > of.largest), of.largest, below)
    above = torch.where(finite & (above < -of.largest), -of.largest, above)
    return beyond(below, of).to(x.dtype), beyond(above, of).to(x.dtype)


def stochastic(x: torch.Tensor, to: Format, generator: torch.Generator) -> torch.Tensor:
    """Round each number to one of its two neighbours, at random, so that the mean is the number.

    The nearer neighbour is the more probable one: a number at a quarter of the way from a to b
    becomes b with the probability 1/4 (Gupta et al. 2015, section 3). An update that is smaller
    than the spacing is then lost in most steps, but not in the mean over many steps.

    Beyond the largest number, the result is as in `nearest`.

    Args:
        x: float32 or float64, any shape.
        generator: makes the random numbers. The same seed gives the same results.
    """
    spacing = to.spacing(x)
    scaled = x.double() / spacing
    floor = scaled.floor()
    chance = torch.rand(x.shape, dtype=torch.float64, generator=generator, device=x.device)
    rounded = (floor + (chance < scaled - floor)) * spacing
    inside = x.abs() <= to.largest
    return torch.where(inside, rounded.to(x.dtype), nearest(x, to))


def beyond(numbers: torch.Tensor, of: Format) -> torch.Tensor:
    """Replace numbers beyond the format's largest by infinity, or by NaN if it has none."""
    outside = numbers.abs() > of.largest
    instead = (
        numbers.sign() * float("inf") if of.infinities else torch.full_like(numbers, torch.nan)
    )
    return torch.where(outside, instead, numbers)

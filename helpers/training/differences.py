"""Measure on one rank how far a strategy is from its twin after a step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helpers.parallel.strategy import Strategy

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One rank compared with the twin, after one step (-1: before the first step).

    Attributes:
        loss, gradient, parameter: the largest absolute difference of any element.
        gradient_name, parameter_name: the tensor with that element.
        relative: the norm of the parameters' difference, divided by how far the twin has moved from
            its first parameters. It is 0 for equal parameters, and 1 for a strategy that does not
            train. At step -1 the divisor is the norm of the parameters.
        relative_loss: the loss's difference, divided by the twin's loss.
        loaded: whether the strategy had been built again and had loaded its saved state.
    """

    rank: int
    step: int
    loss: float = 0.0
    gradient: float = 0.0
    gradient_name: str = ""
    parameter: float
    parameter_name: str
    relative: float
    relative_loss: float = 0.0
    loaded: bool = False


def at_the_start(rank: int, trained: Strategy, first: Tensors) -> Difference:
    """Compare with the twin's first parameters, before the first step."""
    ours = trained.full_state()["model"]
    parameter, name = farthest(ours, first)
    zeros = {name: torch.zeros(()) for name in first}
    far = ratio(distance(ours, first), distance(first, zeros))
    return Difference(rank=rank, step=-1, parameter=parameter, parameter_name=name, relative=far)


def after_a_step(
    rank: int, step: int, trained: Strategy, loss: float, first: Tensors, twin, loaded: bool
) -> Difference:
    """Compare with the twin's record of this step: (loss, gradients, parameters)."""
    twin_loss, twin_gradients, twin_parameters = twin
    parameters = trained.full_state()["model"]
    gradient, gradient_name = farthest(trained.full_gradients(), twin_gradients)
    parameter, parameter_name = farthest(parameters, twin_parameters)
    return Difference(
        rank=rank,
        step=step,
        loss=abs(loss - twin_loss),
        gradient=gradient,
        gradient_name=gradient_name,
        parameter=parameter,
        parameter_name=parameter_name,
        relative=ratio(distance(parameters, twin_parameters), distance(twin_parameters, first)),
        relative_loss=ratio(abs(loss - twin_loss), abs(twin_loss)),
        loaded=loaded,
    )


def farthest(ours: Tensors, theirs: Tensors) -> tuple[float, str]:
    """Return the largest difference of any element, and its tensor.

    A missing tensor is infinitely far. A tensor with NaN is farther than any other.
    """
    worst, where = 0.0, ""
    for name in [*theirs, *(ours.keys() - theirs.keys())]:
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape:
            return float("inf"), name
        far = (ours[name].cpu().double() - theirs[name].double()).abs().max().item()
        if math.isnan(far):
            return far, name
        if far > worst:
            worst, where = far, name
    return worst, where


def distance(ours: Tensors, theirs: Tensors) -> float:
    """Return the norm of all differences together; infinite if a tensor is missing."""
    if ours.keys() != theirs.keys():
        return float("inf")
    norms = [(ours[n].cpu().double() - theirs[n].double()).norm().item() for n in theirs]
    return math.hypot(*norms)


def ratio(far: float, way: float) -> float:
    """Return `far` over `way`; 0 if the twin has not moved."""
    return far / way if way else 0.0

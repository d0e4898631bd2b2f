"""How far a strategy is from its twin after a step: what one rank measures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helpers.parallel.strategy import Strategy

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One rank against the twin, after one step (-1: before the first).

    Attributes:
        loss, gradient, parameter: the largest absolute difference of any element.
        gradient_name, parameter_name: where it is.
        relative: the norm of the parameters' difference over that of the twin's way from its first
            parameters: 0 at the twin's side, 1 for a strategy that stays where it began. At step -1
            over the norm of the parameters themselves.
        relative_loss: the loss's difference over the twin's loss.
        loaded: whether the strategy was made anew and loaded what it had saved before.
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
    """Before the first step, against the twin's first parameters."""
    ours = trained.full_state()["model"]
    parameter, name = farthest(ours, first)
    zeros = {name: torch.zeros(()) for name in first}
    far = ratio(distance(ours, first), distance(first, zeros))
    return Difference(rank=rank, step=-1, parameter=parameter, parameter_name=name, relative=far)


def after_a_step(
    rank: int, step: int, trained: Strategy, loss: float, first: Tensors, twin, loaded: bool
) -> Difference:
    """After a step, against what the twin recorded of it: (loss, gradients, parameters)."""
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
    """The largest difference of any element, and whose; infinite where a tensor is missing."""
    worst, where = 0.0, ""
    for name in [*theirs, *(ours.keys() - theirs.keys())]:
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape:
            return float("inf"), name
        far = (ours[name].cpu().double() - theirs[name].double()).abs().max().item()
        if not far <= worst:  # NaN too
            worst, where = far, name
    return worst, where


def distance(ours: Tensors, theirs: Tensors) -> float:
    """The norm of all differences together; infinite where a tensor is missing."""
    if ours.keys() != theirs.keys():
        return float("inf")
    norms = [(ours[n].cpu().double() - theirs[n].double()).norm().item() for n in theirs]
    return math.hypot(*norms)


def ratio(far: float, way: float) -> float:
    """`far` over `way`; 0 where the twin has gone no way at all."""
    return far / way if way else 0.0

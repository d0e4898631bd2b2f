"""Record one step on one process: the outputs of all modules, and the gradients of the outputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from helpers.data.batch import Batch
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.strategy import Strategy
from helpers.parallel.units import Apart, in_backward


@dataclass
class Witness:
    """The record of one step on one process. Tensors are copies.

    Attributes:
        numbers: of the sequences in its batch: (B,).
        forward: module -> its output, one row per sequence, in the order in which the modules
            ended.
        backward: module -> the gradient of its output, in the order of the backward.
        optimizer: the optimizer's state before the step, by plain name.
        gradients: by plain name, before clipping. Clipping would hide the size of an error, because
            a wrong gradient has a wrong norm.
        parameters: after the step, by plain name.
        before: the parameters before the step.
        loss: of the step.
    """

    numbers: torch.Tensor
    forward: dict[str, torch.Tensor] = field(default_factory=dict)
    backward: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict = field(default_factory=dict)
    gradients: dict = field(default_factory=dict)
    parameters: dict = field(default_factory=dict)
    before: dict = field(default_factory=dict)
    loss: float = 0.0


def witness(trained: Strategy, batch: Batch, rule: OptimizerConfig) -> Witness:
    """Take a step with the optimizer `rule`, and record it."""
    seen = Witness(batch.numbers.clone())
    state = trained.full_state()
    seen.before, seen.optimizer = state["model"], state["optimizer"]
    with watching(trained.model) as (outputs, gradients):
        step = trained.step(batch)
    # Put the rows of several micro-batches in order: autograd may finish them in another order.
    seen.forward = {name: torch.cat([*calls.values()]) for name, calls in outputs.items()}
    seen.backward = {
        name: torch.cat([calls[k] for k in sorted(calls)]) for name, calls in gradients.items()
    }
    seen.loss = step.loss.item()
    factor = rule.factor(step.grad_norm.cpu())
    clipped = trained.full_gradients()
    seen.gradients = {n: g if factor is None else g / factor for n, g in clipped.items()}
    seen.parameters = trained.full_state()["model"]
    return seen


def named(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield a rank's modules by their names in the plain model.

    The stages of a pipeline have the plain names of their blocks. A stage itself has no name in the
    plain model, so it is left out.
    """
    if not isinstance(model, Apart):
        yield from model.named_modules()
        return
    for stage in model.children():
        yield from ((name, module) for name, module in stage.named_modules() if name)


@contextmanager
def watching(model):
    """Yield two tables that fill up: module -> call -> output, and -> gradient of the output."""
    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    outputs, gradients, hooks = {}, {}, []

    def look(name):
        def called(_module, _inputs, output):
            recomputed = in_backward()
            if recomputed or not isinstance(output, torch.Tensor) or not output.ndim:
                return
            calls = outputs.setdefault(name, {})
            number = len(calls)
            calls[number] = output.detach().clone()
            if output.requires_grad:
                output.register_hook(lambda gradient: came(name, number, gradient))

        return called

    def came(name, number, gradient):
        gradients.setdefault(name, {})[number] = gradient.detach().clone()

    try:
        for name, module in (pair for one in models for pair in named(one)):
            hooks.append(module.register_forward_hook(look(name)))
        yield outputs, gradients
    finally:
        for hook in hooks:
            hook.remove()

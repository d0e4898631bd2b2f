"""What ZeRO refuses: optimizers that cannot update shards, changes outside of a step."""

from collections.abc import Mapping

import torch

from helpers.parallel.optimizer import OptimizerConfig
from helpers.state.part import Part

ROWS = 4  # of the matrix of the trial, (ROWS, ROWS)
STEPS = 3


class NotElementWise(ValueError):
    """An optimizer that needs more than one number of a parameter for the update of another."""


def refuse_mixing(rule: OptimizerConfig):
    """Raise if the rule cannot update shards of parameters.

    A shard is a flat range, so its rank does not have the rest of the matrix. The trial makes a few
    updates of a small matrix, whole and in two flat halves. An element-wise rule gives the same
    numbers.

    Raises:
        NotElementWise: the rule refuses flat ranges (Muon), needs more than gradients (LBFGS), or
            gives other numbers (Adafactor).
    """
    name = rule.rule if isinstance(rule.rule, str) else getattr(rule.rule, "__name__", "the rule")
    try:
        whole, halves = updated(rule, pieces=1), updated(rule, pieces=2)
    except Exception as error:
        raise NotElementWise(
            f"ZeRO cuts parameters into flat shards, and {name} cannot update them ({error}). Use "
            "an element-wise optimizer, such as AdamW or SGD"
        ) from error
    if not torch.allclose(whole, halves, rtol=1e-9, atol=0):
        raise NotElementWise(
            f"ZeRO cuts parameters into flat shards, but {name} updates a matrix by more than each "
            "number's own gradient: its shards would get other values than the matrix. Use an "
            "element-wise optimizer, such as AdamW or SGD"
        )


def updated(rule: OptimizerConfig, pieces: int) -> torch.Tensor:
    """Update a matrix in so many flat pieces; one piece keeps the matrix's shape."""
    drawn = torch.Generator().manual_seed(0)
    matrix = torch.randn(ROWS, ROWS, generator=drawn, dtype=torch.float64)
    held = [matrix] if pieces == 1 else list(matrix.view(-1).chunk(pieces))
    tensors = {str(i): tensor.clone().requires_grad_() for i, tensor in enumerate(held)}
    part = Part(name="matrix", shape=(ROWS, ROWS), holders=(0,))
    optimizer = rule.make(tensors, dict.fromkeys(tensors, part))
    for _ in range(STEPS):
        gradient = torch.randn(ROWS, ROWS, generator=drawn, dtype=torch.float64)
        shares = [gradient] if pieces == 1 else gradient.view(-1).chunk(pieces)
        for tensor, share in zip(tensors.values(), shares, strict=True):
            tensor.grad = share.clone()
        optimizer.step()
    return torch.cat([tensor.detach().view(-1) for tensor in tensors.values()])


def marks(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, tuple[int, int]]:
    """Each parameter's version and memory.

    PyTorch counts how often a tensor was written in place. Our own updates write to the rows, which
    have counts of their own.
    """
    return {name: (p._version, p.data_ptr()) for name, p in parameters.items()}


def refuse_changes(before: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]):
    """Raise if a parameter was written, or got other memory, between two `marks`.

    Raises:
        RuntimeError: with the parameter's name.
    """
    for name, mark in now.items():
        if mark != before[name]:
            raise RuntimeError(
                f"{name} has changed outside of the steps. Each rank updates only its own shard, "
                "from its own copy, so the change would be lost on other ranks: use load(state) to "
                "change parameters"
            )

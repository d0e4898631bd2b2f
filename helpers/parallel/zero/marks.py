"""Notice parameters that were changed outside of a step."""

from collections.abc import Mapping

import torch


class Marks:
    """Remember each parameter's version and memory.

    PyTorch counts how often a tensor was written in place. Our own updates write to the rows, which
    have counts of their own.
    """

    def __init__(self):
        self.known: dict[str, tuple[int, int]] = {}

    def set(self, parameters: Mapping[str, torch.nn.Parameter]):
        self.known = {name: mark(p) for name, p in parameters.items()}

    def check(self, parameters: Mapping[str, torch.nn.Parameter]):
        """Raise if a parameter was written, or got other memory, since `set`.

        Raises:
            RuntimeError: with the parameter's name.
        """
        for name, p in parameters.items():
            if mark(p) != self.known[name]:
                raise RuntimeError(
                    f"{name} has changed outside of the steps. Each rank updates only its own "
                    "shard, from its own copy, so the change would be lost on other ranks: use "
                    "load(state) to change parameters"
                )


def mark(parameter: torch.nn.Parameter) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()

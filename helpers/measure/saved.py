"""Which module saved which tensor for the backward: activation memory, taken apart."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers.measure.memory import SavedTensors, own, storages


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A storage that autograd keeps for the backward.

    Attributes:
        module: the name of the module whose forward saved it first; "" for the model itself.
        shape, dtype: of the tensor that was saved.
        bytes: of its storage. A view keeps the whole storage.
    """

    module: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


def saved_by(forward: Callable[[], object], model: torch.nn.Module) -> list[Saved]:
    """Run `forward()`, and list what autograd then keeps for the backward, in order.

    Parameters and buffers do not count, as in `memory_of`. A storage that several modules save
    counts once, for the first. A checkpointed module keeps its inputs alone; they count for the
    module around it.

    Args:
        forward: a function without arguments, which calls `model` and returns the loss. Autograd
            releases what the result of `forward` does not need.
    """
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    running: list[str] = [""]
    hooks = []

    def enter(module, _inputs):
        # a module that several others share has several names: the one inside its caller counts
        caller = f"{running[-1]}." if running[-1] else ""
        inside = [name for name in names[module] if name.startswith(caller)]
        running.append(min(inside or names[module], key=len))

    def leave(*_):
        running.pop()

    for module in names:
        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        found = _Named(lambda: storages(own([model])), running)
        with found:
            result = forward()
        kept = list(found.named.values())
        del result
    finally:
        for hook in hooks:
            hook.remove()
    return kept


class _Named(SavedTensors):
    """Saved tensors, with the module that runs when a storage is saved first."""

    def __init__(self, excepted, running: list[str]):
        super().__init__(excepted)
        self.running, self.named = running, {}

    def _pack(self, tensor):
        new = storages(tensor).keys() - self._holders.keys()
        held = super()._pack(tensor)
        for k in new & self._holders.keys():
            size = storages(tensor)[k]
            self.named[k] = Saved(
                module=self.running[-1], shape=tuple(tensor.shape), dtype=tensor.dtype, bytes=size
            )
        return held

    def _release(self, sizes):
        super()._release(sizes)
        for k in sizes.keys() - self._holders.keys():
            self.named.pop(k, None)

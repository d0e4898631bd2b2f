"""Watch one step of a strategy on this rank: each message, by layer and phase.

The recorder knows nothing of the strategy. It sees the messages below autograd, the layers by hooks
on their modules, the content of a gather by its values, and that of a sum of gradients by its size.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_leaves

from helpers.comm.ledger import ledger
from helpers.data.batch import Examples
from helpers.parallel.strategy import Strategy
from helpers.parallel.units import Unit, in_backward, units
from helpers.training.traffic.contents import Fingerprints
from helpers.training.traffic.diff import Message
from helpers.training.traffic.recorder import Recorder

WARM_UP = 2  # steps before the recorded step


def record(strategy: Strategy, batch: Examples, warm_up: int = WARM_UP) -> list[Message]:
    """Train on this batch, and return the messages of the last step. Every rank calls it.

    The first steps show a strategy the order of the layers. They also make the parameters
    different: norms start as ones, so that their values say nothing.

    Args:
        batch: this rank's part.
        warm_up: the number of steps before the recorded one.
    """
    for _ in range(warm_up):
        strategy.step(batch)
    before = strategy.full_state()["model"]
    with watching(strategy, before) as recorder, ledger(recorder.saw):
        strategy.step(batch)
    after = strategy.full_state()["model"]
    return recorder.messages(Fingerprints(after))


def layers_of(config) -> list[str]:
    """The layers of a configuration's model, in the order of definition: units, as for ZeRO."""
    return [unit.name for unit in units(config.build(device="meta"))]


@contextmanager
def watching(strategy: Strategy, state: Mapping[str, torch.Tensor]) -> Iterator[Recorder]:
    """Yield a recorder with hooks on the strategy's layers."""
    models = strategy.model if isinstance(strategy.model, list | tuple) else [strategy.model]
    found = [unit for model in models for unit in units(model)]
    recorder, hooks = Recorder(found, state, strategy.world_size), []
    for model in models:
        hooks.append(model.register_forward_pre_hook(recorder.model_begins, prepend=True))
        hooks.append(model.register_forward_hook(recorder.model_ends))
    for unit in found:
        hooks += watch(unit, recorder)
    try:
        yield recorder
    finally:
        for hook in hooks:
            hook.remove()


def watch(unit: Unit, recorder: Recorder) -> list:
    """Hooks of one layer: before and after the library's own, which may send messages."""

    def output(module, inputs, out):
        if not in_backward():
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(lambda _: recorder.backward_begins(unit.name))

    return [
        unit.module.register_forward_pre_hook(lambda *_: recorder.begins(unit.name), prepend=True),
        unit.module.register_forward_hook(output, prepend=True),
        unit.module.register_forward_hook(lambda *_: recorder.ends(unit.name)),
    ]

"""A step of a model, and what autograd saves in it."""

import torch

from helpers.measure.memory import SavedTensors, own, storages
from helpers.models.gpt import build, loss_sum


def step_of(config, sequences, tokens, dtype=torch.float32):
    """Return a model, and a function that runs its forward, loss and backward on a batch."""
    model, generator = build(config, dtype=dtype), torch.Generator().manual_seed(0)
    shape = (sequences, tokens)
    x, y = (torch.randint(config.vocab, shape, generator=generator) for _ in "xy")
    return model, lambda: loss_sum(model(x), y)[0].backward()


def bytes_saved(run, module, *inputs) -> int:
    """Count the bytes that autograd saves in `run()`, without the module's own and the inputs."""
    excepted = storages([*own([module]), *inputs])
    saved = SavedTensors(lambda: excepted)
    with saved:
        run()
    return saved.peak


def some_tokens(config, sequences=3, tokens=None, seed=0):
    """Random tokens (B, T) for a model with this configuration; T: the context, unless told."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab, (sequences, tokens or config.context), generator=generator)

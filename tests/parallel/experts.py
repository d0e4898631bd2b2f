"""A model with experts: each is on some of the ranks of dp, whose examples go to it."""

import math
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

from helpers.parallel.transform import plain
from helpers.state.placing import index, only


@dataclass(frozen=True, kw_only=True)
class ExpertConfig:
    """Examples are divided over the experts in order, as over ranks."""

    experts: int = 2
    sequences: int = 8
    vocab: int = 5
    context: int = 4

    def build(self, dtype, device, seed=0):
        return Experts(self, dtype, device)

    def first_value(self, name, shape, seed):
        place = sum(map(ord, name)) + seed
        return torch.linspace(-1, 1, math.prod(shape), dtype=torch.float64).view(shape) * (
            (place % 7 + 1) / 8
        )


class Experts(nn.Module):
    def __init__(self, config, dtype, device):
        super().__init__()
        place = {"dtype": dtype, "device": device}
        self.config = config
        self.shared = nn.Linear(config.vocab, 3, **place)
        self.experts = nn.ModuleDict(
            {str(k): nn.Linear(3, 3, bias=False, **place) for k in range(config.experts)}
        )
        self.head = nn.Linear(3, config.vocab, **place)

    def loss(self, batch):
        config = self.config
        x = functional.one_hot(batch.tokens, config.vocab).to(self.head.weight.dtype)
        hidden = torch.tanh(self.shared(x))
        owners = batch.numbers * config.experts // config.sequences
        # every expert that is here takes part in the graph, also without an example
        routed = sum(
            (owners == int(k))[:, None, None] * expert(hidden) for k, expert in self.experts.items()
        )
        y = functional.one_hot(batch.targets.clamp(min=0), config.vocab)
        error = (self.head(routed) - y).square().sum(-1)
        counted = batch.targets >= 0
        return (error * counted).sum(), counted.sum()


def expert_parallel(config, seed, seat, dtype):
    """Each rank has the expert of its examples; neighbours may share one."""
    placed = plain(config, seed, seat, dtype)
    experts, size = placed.model.experts, seat.layout.size("dp")
    of = [place * config.experts // size for place in range(size)]
    own = of[index(seat.layout, seat.rank, ("dp",))]
    for name in list(experts):
        if int(name) != own:
            del experts[name]
    homes = [place for place in range(size) if of[place] == own]
    parts = {}
    for name, _ in placed.model.named_parameters():
        part = placed.parts[name]
        parts[name] = only(seat, part, "dp", homes) if name.startswith("experts") else part
    return replace(placed, parts=parts)

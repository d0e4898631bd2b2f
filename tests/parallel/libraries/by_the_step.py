"""A strategy like one process, in cases that both wrappers of PyTorch's DDP must pass."""

from copy import deepcopy
from dataclasses import replace

import torch

from helpers.data.batch import IGNORED, random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.training.twin import compare

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def one_without_targets(k):
    batch = random_batch(k, 6, TINY.context, TINY.vocab, ignored=0.1)
    return replace(batch, targets=torch.full_like(batch.targets, IGNORED)) if k == 1 else batch


CLIPPED = OptimizerConfig(clip=0.05)
CASES = {
    "two": {"workers": 2},
    "three": {"workers": 3, "micro_batches": 2, "sequences": 7, "optimizer": CLIPPED},
    "an empty rank": {"workers": 4, "sequences": 3},
    "a batch without targets": {"workers": 2, "batches": one_without_targets},
}
PLAIN_SGD = OptimizerConfig(rule="sgd", lr=0.1, momentum=0.0, clip=None)
SGD = {"workers": 2, "optimizer": PLAIN_SGD, "steps": 3, "micro_batches": 3}


def twin(strategy, **changes):
    return compare(strategy, **{"config": TINY, "steps": 5, "seed": 3, "device": "cpu", **changes})


class Counted:
    """Before a strategy's class: each step has as many forwards as micro-batches were asked for."""

    def __init__(self, *arguments, micro_batches=1, **options):
        self.asked = micro_batches
        super().__init__(*arguments, micro_batches=micro_batches, **options)

    def step(self, batch, lr=None):
        right, sizes = self.model.loss, []
        self.model.loss = lambda micro: (sizes.append(len(micro)), right(micro))[1]
        try:
            return super().step(batch, lr)
        finally:
            self.model.loss = right
            assert len(sizes) == self.asked, sizes


class ByTheStep(Counted):
    """Before a strategy's class: each step gets the twin's learning rate, which no rule has.

    A step with a rate of 0 comes before it, and changes nothing.
    """

    def __init__(self, *arguments, optimizer, **options):
        self.rate = optimizer.lr
        super().__init__(*arguments, optimizer=replace(optimizer, lr=9.0), **options)

    def step(self, batch, lr=None):
        super().step(batch, lr=0.0)
        return super().step(batch, lr=self.rate)


class Spoiled(Counted):
    """Before a strategy's class: all that is given out or loaded is spoiled, and asked for again.

    A state without moments leaves none behind.
    """

    def full_state(self):
        spoil(super().full_state())
        return super().full_state()

    def full_gradients(self):
        spoil({"model": super().full_gradients(), "optimizer": {}})
        return super().full_gradients()

    def load(self, state):
        fresh, own = super().full_state(), deepcopy(state)
        assert fresh["optimizer"] == {}
        super().load(state)
        super().load(fresh)
        assert super().full_state()["optimizer"] == {}
        super().load(own)
        spoil(own)


def spoil(state):
    for value in [*state["model"].values(), *(v for s in state["optimizer"].values()
                                              for v in s.values())]:  # fmt: skip
        value.fill_(9)

"""A strategy like one process, in cases that both wrappers of PyTorch's DDP must pass."""

from dataclasses import replace

from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.training.twin import compare

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)
CASES = {
    "two": {"workers": 2},
    "three": {"workers": 3, "micro_batches": 2, "sequences": 7},
    "an empty rank": {"workers": 4, "sequences": 3},
}
PLAIN_SGD = OptimizerConfig(rule="sgd", lr=0.1, momentum=0.0, clip=None)
SGD = {"workers": 2, "optimizer": PLAIN_SGD, "steps": 3}


def twin(strategy, **changes):
    return compare(strategy, **{"config": TINY, "steps": 5, "device": "cpu", **changes})


class ByTheStep:
    """Before a strategy's class: each step gets the twin's learning rate, which no rule has.

    A step with a rate of 0 comes before it, and changes nothing.
    """

    def __init__(self, *arguments, optimizer, **options):
        self.rate = optimizer.lr
        super().__init__(*arguments, optimizer=replace(optimizer, lr=9.0), **options)

    def step(self, batch, lr=None):
        super().step(batch, lr=0.0)
        return super().step(batch, lr=self.rate)

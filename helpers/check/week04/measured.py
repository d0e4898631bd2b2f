"""Measure what one block sends and keeps, on four real ranks: for the exercises of week 4."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import torch

from helpers.check import hidden
from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.runtime.launch import launch

RANKS = 4  # they make up one group of 4, two groups of 2, or four of 1
NOT_USED = {
    True: "Return bytes. You counted numbers.",
    False: "How many bytes does each number have? It is an argument.",
}
DTYPES = {4: torch.float32, 8: torch.float64}
WAYS = {
    "tensor": (tensor_parallel, {}),
    "sequence, kept": (sequence_parallel, {"again": False}),
    "sequence, again": (sequence_parallel, {"again": True}),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a student's function is asked: its arguments, in order."""

    config: GPTConfig
    sequences: int
    tokens: int
    ranks: int
    way: str
    bytes_per_number: int

    def arguments(self) -> tuple:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def ignores_number(self, fn: Callable) -> bool:
        """Whether the student's function returns the same for numbers of twice the bytes."""
        twice = replace(self, bytes_per_number=2 * self.bytes_per_number)
        try:
            return fn(*twice.arguments()) == fn(*self.arguments())
        except Exception:  # for other numbers it may have no answer
            return False

    def title(self) -> str:
        title = f"{self.way}, {self.ranks} rank{'s' * (self.ranks > 1)}"
        recompute = self.config.recompute
        return title + f", recomputation {recompute}" * (recompute != "none")


def asked(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The cases; while grading, with other numbers of sequences."""
    return tuple(replace(one, sequences=one.sequences + hidden.shift(4)) for one in cases)


@dataclass(frozen=True)
class Measured:
    """What one block sends and keeps on one rank, in a forward and its backward, in bytes.

    Attributes:
        sent: of all messages: counted calls, each with the bytes that a ring sends for it.
        kept: saved by autograd between forward and backward.
    """

    sent: float
    kept: int


@cache
def measure(cases: tuple[Case, ...]) -> dict[Case, Measured]:
    """Run all cases on ranks, in one launch. A second call with the same cases runs nothing."""
    runs = launch(run_cases, RANKS, device="cpu", cases=cases)
    return dict(zip(cases, runs[0], strict=True))


def run_cases(worker, cases: Iterable[Case]) -> list[Measured]:
    torch.set_num_threads(1)
    meshes = {n: make_mesh(Layout(dp=RANKS // n, tp=n)) for n in sorted({c.ranks for c in cases})}
    return [run_block(case, meshes[case.ranks]) for case in cases]


def run_block(case: Case, mesh) -> Measured:
    """One forward and backward of a model's only block, without embedding, head and loss."""
    transform, options = WAYS[case.way]
    dtype, config = DTYPES[case.bytes_per_number], replace(case.config, layers=1)
    model, _ = transform(config, 0, mesh, dtype, **options)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    whole = torch.zeros(case.sequences, case.tokens, dtype=torch.long)
    positions = model.locate(whole)
    model.first = model.last = False  # now it is like a stage in the middle of a pipeline
    tokens = case.tokens if case.way == "tensor" else case.tokens // case.ranks
    x = torch.ones(case.sequences, tokens, config.width, dtype=dtype, requires_grad=True)
    with ledger() as log:
        memory = memory_of(lambda: model(x, positions).sum().backward(), model)
    return Measured(log.wire, memory.activations)

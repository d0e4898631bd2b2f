"""Find replicas that drift apart: tensors that all ranks along an axis should have alike.

In tensor parallelism, every rank computes norms, dropout and residual sums again from the same
numbers. A mistake there (dropout drawn by rank, a sum left out, a norm updated in its own way)
raises no error. The ranks drift apart, and the loss stays plausible.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import Batch
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.strategy import Strategy
from helpers.runtime.launch import launch
from helpers.training.locate import off
from helpers.training.twin import SMALL, see, some_batch
from helpers.training.witness import Witness, watching

PASSES = ("start", "forward", "loss", "backward", "gradient", "update")
ALIKE = {torch.float64: 1e-12, torch.float32: 1e-5}  # relative to the largest number of a tensor


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The first tensor that two ranks should have alike, and have not.

    Attributes:
        step, axis: where.
        ranks: the two ranks.
        kind: one of PASSES, as in `locate.Location`.
        name: of the module or parameter; "" for the loss.
        off: the largest difference, relative to the largest number of the first rank's tensor.
    """

    step: int
    axis: str
    ranks: tuple[int, int]
    kind: str
    name: str
    off: float

    def __str__(self):
        what = {
            "start": f"the parameter {self.name} differs before the step",
            "forward": f"the output of {self.name} differs",
            "loss": "the loss differs",
            "backward": f"the gradient of the output of {self.name} differs",
            "gradient": f"the gradient of {self.name} differs",
            "update": f"the gradients agree, but the update of {self.name} differs",
        }[self.kind]
        hint = {
            "forward": " Does each rank draw its own dropout, or is a sum over {} missing?",
            "backward": " Is a sum over {} missing in the backward before it?",
            "gradient": " Is a sum over {} missing, because each rank sees other tokens?",
        }.get(self.kind, "")
        one, other = self.ranks
        return (
            f"step {self.step}, ranks {one} and {other} along {self.axis}: {what}, by "
            f"{self.off:.2g} of its size.{hint.format(self.axis)}"
        )


def drift(
    strategy: Callable[..., Strategy],
    *,
    layout: Mapping[str, int],
    axis: str = "tp",
    steps: int = 3,
    config=SMALL,
    sequences: int = 8,
    batches: Callable[[int], Batch] | None = None,
    dtype: torch.dtype = torch.float64,
    optimizer: OptimizerConfig | None = None,
    seed: int = 0,
    device: str | None = None,
    partial_sums: Sequence[str] = (),
    **options,
) -> Drift | None:
    """Train on ranks, and return the first drift along an axis; None if the replicas stay alike.

    No twin is needed. A module's output counts as replicated if it has the plain model's shape:
    what is cut, by tokens or by heads, is left out. So are outputs of other sequences, along dp.

    Args:
        strategy, config, sequences, batches, dtype, optimizer, seed, device: as for `compare`.
        layout: sizes of the mesh's axes, such as {"tp": 2}.
        partial_sums: endings of the names of modules whose outputs are partial sums on purpose.
        options: passed on to the strategy.

    Raises:
        ValueError: the layout has no such axis.
        WorkerError: a rank failed.
    """
    __tracebackhide__ = True
    mesh = Layout(**layout)
    if axis not in mesh.axes:
        raise ValueError(f"the layout has the axes {', '.join(mesh.axes)}, not {axis}")
    batches = batches or partial(some_batch, seed, sequences, config)
    every = launch(
        see, mesh.world_size, device=device, strategy=strategy, layout=dict(layout),
        options=options, config=config, seed=seed, dtype=dtype, looked_at=range(steps),
        optimizer=optimizer or OptimizerConfig(), batches=batches, steps=steps,
    )  # fmt: skip
    near = ALIKE.get(dtype, 0.01)
    for step in range(steps):
        shapes = plain_shapes(config, batches(step))
        seen = [run[step] for run in every]
        found = first_drift(seen, shapes, mesh, axis, near, tuple(partial_sums))
        if found:
            return replace(found, step=step)
    return None


def plain_shapes(config, batch: Batch) -> dict[str, tuple[int, ...]]:
    """The shape of each module's output in the plain model, without its rows.

    The model is on the device "meta", so nothing is computed. But experts count their tokens.
    """
    device = "cpu" if getattr(config, "experts", None) else "meta"
    model = config.build(device=device)
    with watching(model) as (outputs, _):
        model.loss(batch.to(device))
    return {name: tuple(calls[0].shape[1:]) for name, calls in outputs.items()}


def first_drift(
    ranks: Sequence[Witness],
    shapes: Mapping[str, tuple[int, ...]],
    layout: Layout,
    axis: str,
    near: float,
    partial_sums: tuple[str, ...] = (),
) -> Drift | None:
    """The first drift in one step: the earliest pass first, then the earliest module."""
    for kind in PASSES:
        for group in layout.groups(axis):
            one, *others = group
            for other in others:
                for name, ours, theirs in replicas(kind, ranks[one], ranks[other], shapes):
                    if kind in ("forward", "backward") and name.endswith(partial_sums):
                        continue
                    if not (far := off(theirs, ours)) <= near:
                        found = {"kind": kind, "name": name, "off": far}
                        return Drift(step=0, axis=axis, ranks=(one, other), **found)
    return None


def replicas(kind: str, one: Witness, other: Witness, shapes: Mapping) -> Iterator[tuple]:
    """Yield (name, one rank's tensor, the other's) of a pass, in the order of the pass."""
    match kind:
        case "loss":
            yield "", *(torch.tensor(seen.loss, dtype=torch.float64) for seen in (one, other))
        case "forward" | "backward" if torch.equal(one.numbers, other.numbers):
            ours, theirs = getattr(one, kind), getattr(other, kind)
            for name, value in ours.items():
                # what is not of the plain shape is cut: other ranks have other numbers
                if name in theirs and tuple(value.shape[1:]) == shapes.get(name):
                    yield name, value, theirs[name]
        case "start":
            yield from both(one.before, other.before)
        case "gradient":
            yield from reversed(list(both(one.gradients, other.gradients)))
        case "update":
            yield from both(one.parameters, other.parameters)


def both(ours: Mapping, theirs: Mapping) -> Iterator[tuple]:
    for name, value in ours.items():
        if name in theirs:
            yield name, value, theirs[name]

"""Every way to train a model on a cluster, and the best: time against memory.

A plan is a layout with its options: micro-batch, chunks, ZeRO, sequence parallelism, recomputation.
`simulate.step_time` gives each its seconds and its bytes. On the **Pareto front** no plan is both
faster and smaller than another.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from helpers.comm.layout import Layout
from helpers.models.shape import GPTShape
from helpers.simulate.memory import memory as bytes_of
from helpers.simulate.plan import Plan, check
from helpers.simulate.step_time import StepTime, step_time
from helpers.simulate.topology import Topology

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A plan with its time and memory.

    Attributes:
        config: the model, with what is recomputed.
        plan: how it is cut.
        step: seconds by cause, and bytes by kind.
    """

    config: GPTShape
    plan: Plan
    step: StepTime

    @property
    def seconds(self) -> float:
        return self.step.seconds

    @property
    def bytes(self) -> float:
        """At the peak, of the GPU that needs the most."""
        return self.step.peak_bytes

    def title(self) -> str:
        plan, words = self.plan, [self.plan.layout.title(), f"b={self.plan.micro}"]
        words += [f"v={plan.chunks}"] * (plan.chunks > 1) + [f"ZeRO-{plan.zero}"] * (plan.zero > 0)
        words += ["sequence"] * plan.sequence
        return ", ".join([*words, f"recompute {self.config.recompute}"])


@dataclass(frozen=True)
class Plans:
    """The Pareto front, the fastest plan first.

    Attributes:
        points: each is slower and smaller than the one before.
        tried: how many plans were timed.
    """

    points: tuple[Point, ...]
    tried: int

    def within(self, memory: float) -> Point:
        """The fastest plan that needs at most so many bytes.

        Raises:
            ValueError: none is so small.
        """
        for point in self.points:
            if point.bytes <= memory:
                return point
        least = min((point.bytes for point in self.points), default=float("inf"))
        raise ValueError(f"no plan fits into {memory:.3g} bytes; the smallest needs {least:.3g}")

    def plot(self, **frame):
        """Draw the front: seconds of a step against bytes."""
        from helpers.plots.curve import curves

        x, y = [p.bytes / 1e9 for p in self.points], [p.seconds for p in self.points]
        names = {"xlabel": "GB of the fullest GPU", "ylabel": "seconds of a step"}
        ends = {p.plan.layout.title(): (p.bytes / 1e9, p.seconds)
                for p in (self.points[0], self.points[-1])}  # fmt: skip
        return curves({"simulated": (x, y)}, log="xy", points=ends, **names | frame)


def plan(
    config: GPTShape,
    cluster: Topology,
    sequences: int,
    *,
    tokens: int | None = None,
    rates=None,
    axes: tuple[str, ...] = ("pp", "dp", "tp"),
    memory: float = math.inf,
    **fixed,
) -> Plans:
    """Time every plan, and return the Pareto front of seconds against bytes.

    Args:
        config: a GPT with attention; its `recompute` is chosen here.
        cluster: all its GPUs are used.
        sequences: of the global batch.
        tokens: of a sequence; None: the whole context.
        rates: as for `step_time`.
        axes: of the layouts; "cp" may be among them. The last has neighbours.
        memory: bytes; plans that need more are not timed, which is much faster.
        fixed: options of a Plan that are not chosen, such as `zero=0`; also `recompute`.

    Raises:
        ValueError: no plan uses these GPUs, or none needs so little memory.
    """
    points, reason = [], ""
    shapes = {again: replace(config, recompute=again) for again in RECOMPUTE}
    for one, recompute in candidates(config, cluster, sequences, tokens or config.context, axes,
                                     fixed):  # fmt: skip
        shape = shapes[recompute]
        try:
            check(shape, one, cluster)
            if memory < math.inf and sum(bytes_of(shape, one).values()) > memory:
                continue
            points.append(Point(config=shape, plan=one, step=step_time(shape, one, cluster, rates)))
        except ValueError as why:  # sizes do not divide
            reason = f"; the last one that was tried: {why}"
    if not points:
        raise ValueError(
            f"no plan cuts {sequences} sequences and the model over {cluster.gpus} GPUs"
            + (f", with {memory:.3g} bytes each" if memory < math.inf else "")
            + reason
        )
    return Plans(tuple(front(points)), len(points))


def candidates(
    config: GPTShape, cluster: Topology, sequences: int, tokens: int, axes, fixed
) -> Iterator[tuple[Plan, str]]:
    """Plans that may fit, each with what is recomputed."""
    fixed = dict(fixed)
    recompute = fixed.pop("recompute", None)
    for sizes in shares(cluster.gpus, len(axes)):
        size = dict(zip(axes, sizes, strict=True))
        p, d, t = (size.get(axis, 1) for axis in ("pp", "dp", "tp"))
        if t > cluster.gpus_per_node or p > config.layers or sequences % d:
            continue
        own = sequences // d
        more = [v for v in (2, 4, 8) if p > 1 and config.layers >= p * v]
        choices = {
            "micro": [b for b in (1, 2, 4, 8, 16) if own % b == 0],
            "chunks": [1, *more],
            "zero": [0, 1, 2, 3] if d > 1 and p == 1 else [0, 1] if d > 1 else [0],
            "sequence": [t > 1],
        }  # fmt: skip
        choices |= {name: [value] for name, value in fixed.items()}
        for values in itertools.product(*choices.values()):
            one = Plan(layout=Layout(**size), sequences=sequences, tokens=tokens,
                       **dict(zip(choices, values, strict=True)))  # fmt: skip
            for again in RECOMPUTE if recompute is None else (recompute,):
                yield one, again


def shares(gpus: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many factors, in order."""
    if axes == 1:
        yield (gpus,)
        return
    for size in range(1, gpus + 1):
        if gpus % size == 0:
            yield from ((size, *rest) for rest in shares(gpus // size, axes - 1))


def front(points: list[Point]) -> Iterator[Point]:
    """The points that no other point beats in both, the fastest first."""
    least = float("inf")
    for point in sorted(points, key=lambda one: (one.seconds, one.bytes)):
        if point.bytes < least:
            least = point.bytes
            yield point

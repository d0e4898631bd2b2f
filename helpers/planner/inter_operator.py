"""The inter-operator plan: which layers form a stage, and on how many devices each stage runs.

Alpa counts a pipeline with B micro-batches as the sum of its stages' times, and (B - 1) times the
slowest. It is no bound: 1F1B takes longer if one stage has slow forwards, another slow backwards.

    T = sum t_i  +  (B - 1) max t_i

For each possible slowest time t_max, a dynamic program finds the smallest sum of stages that are no
slower. F(s, k, d) is that sum for the layers from k on, in s stages, on d devices. The times t_max
are tried from the smallest, until B t_max alone exceeds the best T.

Source: Zheng et al. 2022 (Alpa), arXiv:2201.12023, section 5, equations 2 to 5.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from helpers.planner.problem import NoPlan


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a stage costs on its devices.

    Attributes:
        seconds: of the forward and backward of a micro-batch.
        bytes: on each device, whatever is in flight.
        each: bytes more for each micro-batch in flight.
    """

    seconds: float
    bytes: float = 0.0
    each: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Inter:
    """A pipeline.

    Attributes:
        stages: (layers, mesh) of each.
        costs: of each stage.
        micro_batches: B.
    """

    stages: tuple[tuple[range, Hashable], ...]
    costs: tuple[Cost, ...]
    micro_batches: int

    @property
    def cuts(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return tuple(len(layers) for layers, _ in self.stages)

    @property
    def seconds(self) -> float:
        """T: of a step, without the update."""
        times = [cost.seconds for cost in self.costs]
        return sum(times) + (self.micro_batches - 1) * max(times)


def submeshes(nodes: int, gpus_per_node: int) -> dict[tuple[int, int], int]:
    """(nodes, GPUs of each) of a stage -> all its GPUs: nodes, or a power of two that divides one.

    With these shapes, any choice with the right number of GPUs fits the cluster (Alpa, appendix A).
    """
    within = [(1, 2**k) for k in range(gpus_per_node.bit_length()) if gpus_per_node % 2**k == 0]
    shapes = [*within, *((n, gpus_per_node) for n in range(1, nodes + 1))]
    return {shape: math.prod(shape) for shape in shapes}


def inter_operator(
    layers: int,
    stage: Callable[[int, int, Hashable], Cost | None],
    *,
    meshes: Mapping[Hashable, int],
    devices: int,
    micro_batches: int,
    memory: float = math.inf,
) -> Inter:
    """Find the pipeline with the least T.

    Args:
        layers: of the model.
        stage: (start, stop, mesh) -> the cost of the layers start to stop - 1 there, or None if
            they cannot run there.
        meshes: what a stage may run on -> its devices. A submesh may be there several times, with
            different ways to use it.
        devices: of the cluster; all are used.
        micro_batches: B.
        memory: bytes of a device. By 1F1B, a stage with s stages after it has at most s + 1
            micro-batches in flight.

    Raises:
        NoPlan: no pipeline fits.
    """
    costs = {
        (start, stop, place): cost
        for start in range(layers)
        for stop in range(start + 1, layers + 1)
        for place, (mesh, size) in enumerate(meshes.items())
        if size <= devices and (cost := stage(start, stop, mesh)) is not None
    }
    seconds = np.full((len(meshes), layers, layers + 1), math.inf)
    after = np.full(seconds.shape, -1)  # how many stages may follow, by memory
    for (start, stop, place), cost in costs.items():
        seconds[place, start, stop] = cost.seconds
        free = memory - cost.bytes - cost.each
        if free >= 0:
            most = int(min(layers, free / cost.each)) if cost.each else layers
            after[place, start, stop] = layers if most + 1 >= micro_batches else most
    names, sizes = list(meshes), list(meshes.values())

    best, found = math.inf, None
    for slowest in np.unique(seconds[(after >= 0) & (seconds < math.inf)]):
        if micro_batches * slowest >= best:
            break
        total, stops = fill(np.where(seconds <= slowest, seconds, math.inf), after, sizes, devices)
        if total + (micro_batches - 1) * slowest < best:
            best, found = total + (micro_batches - 1) * slowest, stops
    if found is None:
        raise NoPlan(f"no pipeline on {devices} devices fits into memory")
    return Inter(
        stages=tuple((range(start, stop), names[place]) for start, stop, place in found),
        costs=tuple(costs[key] for key in found),
        micro_batches=micro_batches,
    )


def fill(
    seconds: np.ndarray, after: np.ndarray, sizes: Sequence[int], devices: int
) -> tuple[float, list[tuple[int, int, int]]]:
    """The dynamic program for one t_max: the least sum, and each stage as (start, stop, mesh).

    Args:
        seconds: (meshes, layers, layers + 1) of the layers start to stop - 1; infinite if slow.
        after: of the same shape: how many stages may follow.
    """
    layers = seconds.shape[1]
    best = np.full((layers + 1, devices + 1), math.inf)  # of the layers from k on, on d devices
    best[layers, 0] = 0.0
    ways, least = [], (math.inf, 0)
    for stages in range(1, layers + 1):
        found = np.full_like(best, math.inf)
        way = np.zeros((*best.shape, 2), dtype=int)  # where the first stage stops, and its mesh
        for place, size in enumerate(sizes):
            if size > devices:
                continue
            allowed = np.where(after[place] >= stages - 1, seconds[place], math.inf)
            total = allowed[:, :, None] + best[None, :, : devices + 1 - size]  # (start, stop, d)
            stop, value = total.argmin(1), total.min(1)
            better = value < found[:layers, size:]
            found[:layers, size:][better] = value[better]
            way[:layers, size:][better] = np.stack(
                [stop[better], np.full(better.sum(), place)], axis=-1
            )
        best = found
        ways.append(way)
        least = min(least, (best[0, devices], stages))
    if least[0] == math.inf:
        return math.inf, []
    chain, start, left = [], 0, devices
    for way in reversed(ways[: least[1]]):
        stop, place = (int(x) for x in way[start, left])
        chain.append((start, stop, place))
        start, left = stop, left - sizes[place]
    return float(least[0]), chain

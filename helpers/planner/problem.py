"""One strategy for each node, at the least cost, within a memory limit at each time.

A node has strategies, each with a cost and a usage of memory. The node is alive for an interval of
time. An edge has a cost for each pair of its nodes' strategies, such as the time to reshard a
tensor. A cost of `FORBIDDEN` or more rules a pair, or a strategy, out.

This is the integer program of Alpa's section 4.2 (Zheng et al. 2022, arXiv:2201.12023), with the
memory limit that the authors of XLA's auto-sharding added, and with the words of the contest on it
(ASPLOS and EuroSys 2025, github.com/asplos-contest/2025, IOPDDL.md).
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

FORBIDDEN = 10**18  # the contest's files write this for infinity


class NoPlan(ValueError):
    """No choice keeps the memory limit and avoids all forbidden costs."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Nodes, edges and a limit.

    Attributes:
        costs: of each node's strategies.
        edges: (a tuple of nodes, the costs of all tuples of their strategies, the last node's
            strategy counts fastest). An edge of one node adds to that node's costs.
        usages: of each node's strategies, in units of memory; none counts as 0.
        intervals: (first, end) of each node's life; end is not included. A node without one, or
            with an empty one, needs no memory.
        limit: of all usages at any time; None is no limit.

    Raises:
        ValueError: lists of different lengths, an unknown node, a negative usage, an edge of more
            than two nodes, or costs that are no numbers.
    """

    costs: Sequence[Sequence[float]]
    edges: Sequence[tuple[tuple[int, ...], Sequence[float]]] = ()
    usages: Sequence[Sequence[float]] = field(default=())
    intervals: Sequence[Sequence[int]] = field(default=())
    limit: float | None = None

    def __post_init__(self):
        sizes = [len(costs) for costs in self.costs]
        for name, rows in (("usages", self.usages), ("intervals", self.intervals)):
            if rows and len(rows) != len(sizes):
                raise ValueError(f"{len(rows)} {name} for {len(sizes)} nodes")
        for node, usage in enumerate(self.usages):
            if len(usage) != sizes[node] or not all(0 <= one < math.inf for one in usage):
                raise ValueError(f"node {node}: needs {sizes[node]} usages, each 0 or more")
        for nodes, costs in self.edges:
            if not 1 <= len(nodes) <= 2 or not all(0 <= node < len(sizes) for node in nodes):
                raise ValueError(f"an edge joins one or two known nodes, not {tuple(nodes)}")
            if len(costs) != math.prod(sizes[node] for node in nodes):
                raise ValueError(f"edge {tuple(nodes)}: {len(costs)} costs, not one for each pair")
        for costs in itertools.chain(self.costs, (costs for _, costs in self.edges)):
            if not (np.array(costs, dtype=float) > -math.inf).all():
                raise ValueError("a cost is a number, or infinite")

    @property
    def whole(self) -> bool:
        """Whether all costs are whole numbers."""
        every = itertools.chain(self.costs, (costs for _, costs in self.edges))
        arrays = (np.array(costs, dtype=float) for costs in every)
        return all((costs == np.floor(costs)).all() for costs in arrays)

    def cost(self, chosen: Sequence[int]) -> float:
        """Sum all costs, exactly for whole numbers; infinite if one of them is forbidden."""
        parts = [costs[one] for costs, one in zip(self.costs, chosen, strict=True)]
        for nodes, costs in self.edges:
            place = 0
            for node in nodes:
                place = place * len(self.costs[node]) + chosen[node]
            parts.append(costs[place])
        return math.inf if any(part >= FORBIDDEN for part in parts) else sum(parts)

    def peak(self, chosen: Sequence[int]) -> float:
        """Return the largest sum of usages at any time."""
        change = Counter()
        for usage, (first, end), one in zip(self.usages, self.intervals, chosen, strict=False):
            if first < end:
                change[first] += usage[one]
                change[end] -= usage[one]
        return max(itertools.accumulate(change[time] for time in sorted(change)), default=0)

    def holds(self, chosen: Sequence[int]) -> bool:
        """Whether the choice is within the limit and avoids all forbidden costs."""
        fits = self.limit is None or self.peak(chosen) <= self.limit
        return fits and self.cost(chosen) < math.inf

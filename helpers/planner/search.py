"""Improve a choice by parts: free some neighbouring nodes, and solve their own integer program.

For problems that are too large to prove. The choice may miss the memory limit or include forbidden
costs at first: both cost a price that rises until it is repaired.

Source of the method: Shaw 1998, "Using constraint programming and local search methods to solve
vehicle routing problems" (large neighbourhood search).
"""

import math
import random
import time
from collections import Counter

import numpy as np

from helpers.planner.ascent import ascend
from helpers.planner.problem import NoPlan
from helpers.planner.program import best
from helpers.planner.reduce import Reduced

LARGE = 10**6  # strategies in one part: more than any program of the size that is solved in time
AT_ONCE, SLOW = 8.0, 2.0  # seconds for one part, and of the processor for one of the right size


class Search:
    """A choice of all nodes of a reduced problem, and its price.

    Args:
        chosen: to improve; None: to start from `ascend`.
        seconds: for the start and the bound.

    Attributes:
        chosen: node -> place of its strategy.
        price: of a forbidden cost.
        bound: no choice of these nodes costs less.
    """

    def __init__(self, reduced: Reduced, chosen: dict[int, int] | None = None, seconds=10.0):
        self.reduced, self.random = reduced, random.Random(0)
        tables = [table for others in reduced.edges.values() for table in others.values()]
        costs = [*reduced.cost.values(), *tables]
        largest = max((cost[cost < math.inf].max(initial=0.0) for cost in costs), default=0.0)
        self.price, self.weight, self.visits = 100 * largest + 1, 0.0, Counter()
        start, self.bound = ascend(reduced, self.price, time.monotonic() + seconds)
        self.chosen = chosen or start

    def cost(self, nodes, weights: dict[int, float] | None = None) -> float:
        """The price of these nodes, of their edges, and of weighted memory."""
        inside, total = set(nodes), 0.0
        for node in inside:
            total += self.reduced.cost[node][self.chosen[node]]
            if node in (weights or {}):
                total += weights[node] * self.reduced.load[node][:, self.chosen[node]].sum()
            for other, table in self.reduced.edges[node].items():
                if other not in inside or node < other:
                    total += min(table[self.chosen[node], self.chosen[other]], self.price)
        return total

    def forbidden(self) -> list[int]:
        """The nodes with a forbidden cost."""
        return [
            node
            for node, others in self.reduced.edges.items()
            for other, table in others.items()
            if table[self.chosen[node], self.chosen[other]] == math.inf
        ]

    def over(self) -> np.ndarray:
        """(K,) memory that is missing at each time."""
        return np.maximum(self.reduced.used(self.chosen) - self.reduced.room, 0.0)

    def alive(self, at: np.ndarray) -> list[int]:
        """The nodes with a load at any of these times."""
        count = np.append(0, np.cumsum(at))
        firsts, ends = self.reduced.places()
        nodes = [node for node, spans in self.reduced.spans.items() for _ in spans]
        here = count[ends] > count[firsts]
        return list(dict.fromkeys(node for node, yes in zip(nodes, here, strict=True) if yes))

    def run(self, until: float) -> bool:
        """Improve the choice until the time is over, or until one part was all that there is.

        Returns:
            whether the choice keeps the limit, and has no forbidden cost.
        """
        size = 300
        while time.monotonic() < until:
            wrong = self.forbidden() or self.alive(self.over() > 0)
            some = self.random.choices(wrong or list(self.reduced.cost), k=8)
            nodes = self.near(min(some, key=self.visits.__getitem__), size)
            self.visits.update(nodes)
            began = time.process_time()
            self.improve(nodes, min(AT_ONCE, until - time.monotonic()))
            slow = time.process_time() - began > SLOW
            size = min(max(20, int(size * (0.7 if slow else 1.3))), LARGE)
            if len(nodes) == len(self.reduced.cost) and not slow and not wrong:
                break
        return not self.forbidden() and not self.over().any()

    def near(self, seed: int, size: int) -> list[int]:
        """Nodes around one node, by steps along the edges, with about `size` strategies."""
        found, ahead, count = {}, [seed], 0
        while ahead and count < size:
            node = ahead.pop(0)
            if node not in found:
                found[node] = None
                count += len(self.reduced.cost[node])
                fresh = [other for other in self.reduced.edges[node] if other not in found]
                ahead += self.random.sample(fresh, len(fresh))
        return list(found)

    def improve(self, nodes: list[int], seconds: float):
        """Choose for these nodes anew, by their integer program."""
        reduced, over = self.reduced, self.over()
        price, places = self.price if self.forbidden() else math.inf, None
        for repair in (False, True) if over.any() else (False,):
            weights = None
            if repair:  # these nodes alone cannot keep the limit: memory gets a price that rises
                self.weight = 1.5 * self.weight or self.cost(reduced.cost) / over.max() / 1e3
                weights = dict.fromkeys(self.alive(over > 0), self.weight)
            try:
                part = reduced.around(nodes, self.chosen, price, weights)
                places, _ = best(part, seconds)
                break
            except NoPlan:
                continue
        if places is None:
            return
        before, least = {node: self.chosen[node] for node in nodes}, self.cost(nodes, weights)
        self.chosen |= part.whole(places)
        repairs = weights is None and over.any()
        worse = self.cost(nodes, weights) > least and not repairs
        if worse or (self.over() > over).any():  # the latter by rounding
            self.chosen |= before

"""The integer program of a reduced problem, for HiGHS.

A node has a binary variable for each strategy, and their sum is 1. An edge has a variable for each
pair of strategies: the sum of a row is the variable of that row's strategy, and so for columns.
Equal rows share their variables. (Rows that differ by a constant are equal here, because `Reduced`
has moved the constant to the node.)

Source of the edges' form: Zheng et al. 2022 (Alpa), section 4.2, in the stronger form of Koster,
van Hoesel and Kolen 1998, "The partial constraint satisfaction problem: facets and lifting
theorems".
"""

import math
import time
from collections.abc import Callable

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import connected_components

from helpers.planner.problem import NoPlan
from helpers.planner.reduce import Reduced


class Program:
    """min cost · x, with low <= rows x <= high and 0 <= x <= 1.

    Attributes:
        starts: node -> its first variable. The variables of nodes are 0 or 1.
        nodes: how many variables of nodes there are.
    """

    def __init__(self, reduced: Reduced):
        self.starts, self.nodes, self.count = {}, 0, 0
        costs, low, high, parts = [], [], [], []

        def put(i, j, value):
            parts.append(np.broadcast_arrays(i, j, np.asarray(value, dtype=float)))

        for node, cost in reduced.cost.items():
            self.starts[node] = self.nodes
            put(len(low), self.nodes + np.arange(len(cost)), 1.0)
            self.nodes += len(cost)
            costs.append(cost)
            low.append(1.0)
        high += low
        count = self.nodes
        for a, others in reduced.edges.items():
            for b, table in others.items():
                if a < b:
                    row, column = classes(table), classes(table.T)
                    small = np.full((row.max() + 1, column.max() + 1), math.inf)
                    small[row[:, None], column] = table
                    i, j = np.nonzero(small < math.inf)
                    place = count + np.arange(len(i))
                    put(len(low) + i, place, 1.0)
                    put(len(low) + row, self.starts[a] + np.arange(len(row)), -1.0)
                    low += [0.0] * len(small)
                    put(len(low) + j, place, 1.0)
                    put(len(low) + column, self.starts[b] + np.arange(len(column)), -1.0)
                    low += [0.0] * small.shape[1]
                    costs.append(small[i, j])
                    count += len(i)
        high += [0.0] * (len(low) - len(high))
        unit, round_down = common(reduced)
        for node, load in reduced.load.items():
            places = np.searchsorted(reduced.times, reduced.spans[node])
            for (first, end), row in zip(places, load, strict=True):
                rows = len(low) + np.arange(first, end)
                put(rows[:, None], self.starts[node] + np.arange(len(row)), row / unit)
        low += [-math.inf] * len(reduced.room)
        high += round_down(reduced.room / unit).tolist()

        i, j, values = (np.concatenate([part[k].ravel() for part in parts]) for k in range(3))
        self.cost = np.concatenate(costs)
        self.rows = csr_array((values, (i, j)), shape=(len(low), count))
        self.rows.eliminate_zeros()
        self.low, self.high = np.array(low), np.array(high)

    def solve(self, seconds: float) -> tuple[np.ndarray | None, float]:
        """Solve each of the program's independent parts.

        Args:
            seconds: to stop after, about.

        Returns:
            (x, or None if time was too short to find one; a cost that no x is below).

        Raises:
            NoPlan: no x exists.
        """
        until = time.monotonic() + seconds
        rows, count = self.rows.shape
        graph = block_array([[None, self.rows], [self.rows.T, None]])
        _, label = connected_components(graph, directed=False)
        x, bound = np.zeros(count), 0.0
        # HiGHS stops at a gap of 1e-6; whole numbers stay whole.
        scale = 1.0 if (self.cost % 1 == 0).all() else 1e6 / np.abs(self.cost).max()
        parts = np.unique(label[rows:])
        for part in parts:
            own, which = label[:rows] == part, label[rows:] == part
            integral = which[: self.nodes].sum()
            found = milp(
                scale * self.cost[which],
                integrality=np.arange(which.sum()) < integral,
                bounds=Bounds(0, 1),
                constraints=LinearConstraint(
                    self.rows[own][:, which], self.low[own], self.high[own]
                ),
                options={"mip_rel_gap": 0.0, "time_limit": max(0.1, until - time.monotonic())},
            )
            if found.status == 2:
                raise NoPlan("no choice keeps the memory limit and avoids all forbidden costs")
            bound += (found.mip_dual_bound or 0.0) / scale
            x = None if x is None or found.x is None else x
            if x is not None:
                x[which] = found.x
        return x, bound


def best(reduced: Reduced, seconds: float, most: float = math.inf) -> tuple[dict | None, float]:
    """Find the best strategies of the nodes that are left.

    Args:
        seconds: to stop after, about.
        most: entries of a program; a larger one is not solved.

    Returns:
        (node -> place of its strategy, or None; a cost that no choice is below).
    """
    if not reduced.cost:
        return {}, 0.0
    least = float(sum(cost.min() for cost in reduced.cost.values()))
    program = Program(reduced)
    if program.rows.nnz > most:
        return None, least
    x, bound = program.solve(seconds)
    if x is None:
        return None, max(least, bound)
    return {
        node: int(x[start : start + len(reduced.cost[node])].argmax())
        for node, start in program.starts.items()
    }, max(least, bound)


def classes(table: np.ndarray) -> np.ndarray:
    """(S,) the number of each row among the different rows."""
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)


def common(reduced: Reduced) -> tuple[float, Callable]:
    """The unit of memory: of whole numbers, the greatest that divides all loads."""
    loads = np.concatenate([np.empty(0), *(load.ravel() for load in reduced.load.values())])
    if not loads.any():
        return 1.0, np.asarray
    if (loads % 1 == 0).all() and loads.max() < 2**53:
        return float(np.gcd.reduce(loads.astype(np.int64))), np.floor
    return loads.max(), np.asarray

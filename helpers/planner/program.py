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
from collections.abc import Callable

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from helpers.planner.problem import NoPlan
from helpers.planner.reduce import Reduced


def best(reduced: Reduced, seconds: float, most: float = math.inf) -> tuple[dict | None, float]:
    """Find the best strategies of the nodes that are left.

    HiGHS compares with a tolerance. Where loads without their common factor are 2**20 or more,
    and the limit is nearly reached, it may miss a choice, or the bound may be off.

    Args:
        seconds: to stop after, about.
        most: numbers in all edges' tables; a larger program is not solved.

    Returns:
        (node -> place of its strategy, or None; a cost that no choice is below).

    Raises:
        NoPlan: no choice exists.
    """
    if not reduced.cost:
        return {}, 0.0
    least = float(sum(cost.min() for cost in reduced.cost.values()))
    if sum(table.size for others in reduced.edges.values() for table in others.values()) > 2 * most:
        return None, least
    cost, rules, starts, binary = program(reduced)
    # HiGHS stops at a gap of 1e-6. Whole numbers stay whole.
    scale = 1.0 if (cost % 1 == 0).all() else 1e6 / np.abs(cost).max()
    found = milp(
        scale * cost,
        integrality=np.arange(len(cost)) < binary,
        bounds=Bounds(0, 1),
        constraints=rules,
        options={"mip_rel_gap": 0.0, "time_limit": max(0.1, seconds)},
    )
    if found.status == 2:
        raise NoPlan("no choice keeps the memory limit and avoids all forbidden costs")
    least = max(least, (found.mip_dual_bound or 0.0) / scale)
    if found.x is None:
        return None, least
    own = {node: found.x[start:][: len(reduced.cost[node])] for node, start in starts.items()}
    return {node: int(x.argmax()) for node, x in own.items()}, least


def program(reduced: Reduced) -> tuple[np.ndarray, LinearConstraint, dict[int, int], int]:
    """Write the program.

    Returns:
        (the variables' costs, the constraints, each node's first variable, how many variables
        belong to nodes: the first ones, which are 0 or 1).
    """
    starts, count, costs, low, parts = {}, 0, [], [], []

    def put(i, j, value):
        parts.append(np.broadcast_arrays(i, j, np.asarray(value, dtype=float)))

    for node, cost in reduced.cost.items():
        starts[node] = count
        put(len(low), count + np.arange(len(cost)), 1.0)
        count += len(cost)
        costs.append(cost)
        low.append(1.0)
    binary = count
    for a, others in reduced.edges.items():
        for b, table in others.items():
            if a > b:
                continue
            row, column = classes(table), classes(table.T)
            small = np.full((row.max() + 1, column.max() + 1), math.inf)
            small[row[:, None], column] = table
            i, j = np.nonzero(small < math.inf)
            for node, own, of in ((a, row, i), (b, column, j)):
                put(len(low) + of, count + np.arange(len(i)), 1.0)
                put(len(low) + own, starts[node] + np.arange(len(own)), -1.0)
                low += [0.0] * (own.max() + 1)
            costs.append(small[i, j])
            count += len(i)
    high, (unit, rounded) = low.copy(), common(reduced)
    for node, load in reduced.load.items():
        places = np.searchsorted(reduced.times, reduced.spans[node])
        for (first, end), row in zip(places, load, strict=True):
            rows = len(low) + np.arange(first, end)
            put(rows[:, None], starts[node] + np.arange(len(row)), row / unit)
    low += [-math.inf] * len(reduced.room)
    high += rounded(reduced.room / unit).tolist()

    i, j, values = (np.concatenate([part[k].ravel() for part in parts]) for k in range(3))
    matrix = csr_array((values, (i, j)), shape=(len(low), count))
    matrix.eliminate_zeros()
    return np.concatenate(costs), LinearConstraint(matrix, low, high), starts, binary


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

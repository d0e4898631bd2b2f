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
from scipy.sparse import csr_array

from helpers.planner.problem import NoPlan
from helpers.planner.reduce import Reduced

MANY = 2**18  # units of memory: HiGHS compares with a tolerance of 1e-6
LITTLE = 1e-9  # unit: more than a division's error


def best(reduced: Reduced, seconds: float, most: float = math.inf) -> tuple[dict | None, float]:
    """Find the best strategies of the nodes that are left.

    The program's loads are rounded, so its best choice may miss the limit by little. Then a rule
    excludes these loads together, and the program is solved again. Sums of loads are exact up to
    2**53.

    Args:
        seconds: to stop after, about. The choice may miss the limit then.
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
    until = time.monotonic() + seconds
    cost, rules, starts, binary = program(reduced)
    # HiGHS stops at a gap of 1e-6. Whole numbers stay whole.
    scale = 1.0 if (cost % 1 == 0).all() else 1e6 / np.abs(cost).max()
    rules = [rules]
    while True:
        found = milp(
            scale * cost,
            integrality=np.arange(len(cost)) < binary,
            bounds=Bounds(0, 1),
            constraints=rules,
            options={"mip_rel_gap": 0.0, "time_limit": max(0.1, until - time.monotonic())},
        )
        if found.status == 2:
            raise NoPlan("no choice keeps the memory limit and avoids all forbidden costs")
        least = max(least, (found.mip_dual_bound or 0.0) / scale)
        if found.x is None:
            return None, least
        own = {node: found.x[start:][: len(reduced.cost[node])] for node, start in starts.items()}
        places = {node: int(x.argmax()) for node, x in own.items()}
        cover = too_much(reduced, places)
        if not cover or time.monotonic() > until:
            return places, least
        row = np.zeros((1, len(cost)))
        for node, heavy in cover.items():
            row[0, starts[node] + np.flatnonzero(heavy)] = 1.0
        rules.append(LinearConstraint(row, -math.inf, len(cover) - 1.0))


def too_much(reduced: Reduced, places: dict[int, int]) -> dict[int, np.ndarray]:
    """Nodes whose loads exceed the room at some time: node -> (S,) strategies with such a load."""
    over = reduced.used(places) - reduced.room
    whole = all((load % 1 == 0).all() for load in reduced.load.values())  # or sums are rounded
    if over.max(initial=0.0) <= (0.0 if whole else 1e-12 * np.abs(reduced.room).max()):
        return {}
    at, cover = int(over.argmax()), {}
    for node, spans in reduced.spans.items():
        first, end = np.searchsorted(reduced.times, spans).T
        for load in reduced.load[node][(first <= at) & (at < end)]:
            if load[places[node]] > 0:
                cover[node] = load >= load[places[node]]
    return cover


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
            put(rows[:, None], starts[node] + np.arange(len(row)), rounded(row / unit))
    low += [-math.inf] * len(reduced.room)
    high += np.floor(reduced.room / unit + LITTLE).tolist()

    i, j, values = (np.concatenate([part[k].ravel() for part in parts]) for k in range(3))
    matrix = csr_array((values, (i, j)), shape=(len(low), count))
    matrix.eliminate_zeros()
    return np.concatenate(costs), LinearConstraint(matrix, low, high), starts, binary


def classes(table: np.ndarray) -> np.ndarray:
    """(S,) the number of each row among the different rows."""
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)


def common(reduced: Reduced) -> tuple[float, Callable]:
    """The unit of memory, and how loads in it are rounded.

    The unit is the greatest number that divides all loads, if none has too many of it. Otherwise
    loads are rounded down, so that no choice that fits is lost.
    """
    loads = np.concatenate([np.empty(0), *(load.ravel() for load in reduced.load.values())])
    if not loads.any():
        return 1.0, np.asarray
    if (loads % 1 == 0).all() and loads.max() < 2**53:
        unit = float(np.gcd.reduce(loads.astype(np.int64)))
        if loads.max() / unit < MANY:
            return unit, np.asarray
    return loads.max() / MANY, lambda load: np.floor(load - LITTLE).clip(0)

"""A bound and a first choice for a large problem, by moving costs between nodes and edges.

Without the memory limit. A node takes the least costs of its edges' rows, and gives equal parts of
what it has to the edges ahead of it. The next pass goes the other way. What all nodes can count on
is a bound, and no pass lowers it. On the way, each node chooses its best strategy beside the ones
that are chosen already.

Source of the method: Kolmogorov 2015, "A new look at reweighted message passing", section 4
(sequential reweighted message passing; TRW-S where edges join two nodes).
"""

import time

import numpy as np

from helpers.planner.reduce import Reduced

ENOUGH = 1e-4  # a pass that raises the bound by a smaller share is the last


def ascend(reduced: Reduced, price: float, until: float) -> tuple[dict[int, int], float]:
    """Choose a strategy for each node, and bound the cost of every choice from below.

    Args:
        price: in place of infinity.
        until: when to stop, by `time.monotonic`; one pass there and back is always done.

    Returns:
        (node -> place of its strategy, a cost that no choice is below).
    """
    own = {node: np.minimum(cost, price) for node, cost in reduced.cost.items()}
    edges = {node: {} for node in own}
    for a, others in reduced.edges.items():
        for b, table in others.items():
            if a < b:
                edges[a][b] = np.minimum(table, price)
                edges[b][a] = edges[a][b].T  # the same memory
    bound, last, chosen, order, forward = 0.0, -1.0, {}, sorted(own), True
    while True:
        chosen = {} if forward else chosen
        for node in order:
            cost, told = own[node], 0.0
            for other, table in edges[node].items():
                least = table.min(1)
                cost += least
                table -= least[:, None]
                if other in chosen and (other < node) == forward:
                    told = told + table[:, chosen[other]]
            if forward:
                chosen[node] = int((cost + told).argmin())
            bound += cost.min()
            cost -= cost.min()
            ahead = [table for other, table in edges[node].items() if (other > node) == forward]
            if ahead:
                share = cost / max(len(ahead), len(edges[node]) - len(ahead))
                cost -= share * len(ahead)
                for table in ahead:
                    table += share[:, None]
        if not forward:
            if time.monotonic() > until or bound - last <= ENOUGH * abs(bound):
                return chosen, bound
            last = bound
        order.reverse()
        forward = not forward

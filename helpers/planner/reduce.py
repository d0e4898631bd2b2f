"""Make a problem smaller without losing its optimum, and carry a choice back.

- An edge's smallest cost in each row and column moves to its nodes. An edge that is then 0
  everywhere disappears.
- A strategy with no allowed partner disappears, and one that does not fit beside the others' least
  usages. So does a **dominated** strategy: another of the same node costs no more, whatever the
  neighbours choose, and uses no more memory.
- A node with one strategy becomes part of its neighbours' costs. A node **follows** a neighbour
  whose every strategy allows only one of its own: it becomes part of the neighbour.
- A node whose strategies all use the same memory, with at most two neighbours: for each choice of
  the neighbours its best strategy is known. It becomes an edge between them.
- A time is dropped if even the largest usages fit, or if a neighbouring time implies it.
"""

import math
import time
from copy import copy

import numpy as np

from helpers.planner.problem import FORBIDDEN, NoPlan, Problem

LARGEST = 30_000  # costs of a node and its two neighbours, for which the best are computed


class Reduced:
    """What is left of a problem.

    Args:
        until: when to stop, by `time.monotonic`; what is left then is larger.

    Attributes:
        cost: node -> (S,) of its strategies.
        names: node -> (S,) the strategies' places in the problem.
        edges: node -> neighbour -> (S, T).
        load: node -> (R, S) of usage above the least, for each of its R spans. A node that no limit
            needs has none.
        spans: node -> (R, 2) of first times and ends; they do not overlap.
        times: (K,) at which the limit may be missed.
        room: (K,) memory that is left at that time for the loads.
        constant: the cost so far.
    """

    def __init__(self, problem: Problem, until: float = math.inf):
        self.empty()
        self.until = until
        for node, costs in enumerate(problem.costs):
            if not len(costs):
                raise NoPlan(f"node {node} has no strategy")
            self.cost[node] = barred(costs)
            self.names[node] = np.arange(len(costs))
            self.edges[node] = {}
        for nodes, costs in problem.edges:
            self.join(nodes, barred(costs))
        if problem.limit is not None:
            used = zip(problem.usages, problem.intervals, strict=False)
            for node, (usage, (first, end)) in enumerate(used):
                if first < end and any(usage):
                    self.load[node] = np.array([usage], dtype=float)
                    self.spans[node] = np.array([[first, end]])
            firsts = [span[0, 0] for span in self.spans.values()]
            self.times = np.unique(np.array(firsts, dtype=int))
            self.room = np.full(len(self.times), float(problem.limit))
        self.todo = dict.fromkeys(self.cost)
        self.shrink()

    def empty(self):
        self.cost, self.names, self.edges, self.load, self.spans = {}, {}, {}, {}, {}
        self.times, self.room = np.empty(0, int), np.empty(0)
        self.constant, self.gone, self.todo = 0.0, [], {}

    def around(self, nodes, chosen: dict[int, int], price: float, weights=None) -> "Reduced":
        """The problem of these nodes alone; the others keep what is chosen.

        Args:
            chosen: node -> place in the node's arrays, of all nodes that are left.
            price: in place of infinity, so that a choice with forbidden costs can be repaired.
            weights: node -> the price of a unit of its memory, if the limit may be missed as now.

        Raises:
            NoPlan: the nodes alone cannot keep the limit.
        """
        part = copy(self)
        part.empty()
        part.until = math.inf
        part.times, part.room = self.times, self.room - self.used(chosen)
        if weights is not None:
            part.room = np.maximum(part.room, 0.0)
        for node in nodes:
            part.cost[node] = self.cost[node]
            part.names[node] = np.arange(len(self.cost[node]))
            part.edges[node] = {}
            if node in self.load:
                part.load[node], part.spans[node] = self.load[node], self.spans[node]
                part.occupy(node, -self.load[node][:, chosen[node]])
                if node in (weights or {}):
                    part.cost[node] = part.cost[node] + weights[node] * self.load[node].sum(0)
        for node in nodes:
            for other, table in self.edges[node].items():
                table = np.minimum(table, price)
                if other not in part.cost:
                    part.cost[node] = part.cost[node] + table[:, chosen[other]]
                elif node < other:
                    part.link(node, other, table)
        part.todo = dict.fromkeys(part.cost)
        part.shrink()
        return part

    def used(self, chosen: dict[int, int]) -> np.ndarray:
        """(K,) memory of the loads of a choice."""
        if not self.load:
            return np.zeros(len(self.times))
        amounts = np.concatenate([load[:, chosen[node]] for node, load in self.load.items()])
        firsts, ends = self.places()
        count = len(self.times) + 1
        change = np.bincount(firsts, amounts, count) - np.bincount(ends, amounts, count)
        return np.cumsum(change)[:-1]

    def join(self, nodes: tuple[int, ...], costs: np.ndarray):
        """Add an edge's costs; two edges between the same nodes become one."""
        a, b = nodes[0], nodes[-1]
        if a == b:
            size = len(self.cost[a])
            here = costs if len(nodes) == 1 else costs.reshape(size, size).diagonal()
            self.cost[a] = self.cost[a] + here
            return
        table = costs.reshape(len(self.cost[a]), len(self.cost[b]))
        self.link(a, b, table + self.edges[a].get(b, 0.0))

    def link(self, a: int, b: int, table: np.ndarray):
        self.edges[a][b], self.edges[b][a] = table, table.T

    def keep(self, node: int, mask: np.ndarray):
        """Forget the node's other strategies."""
        if mask.all():
            return
        if not mask.any():
            raise NoPlan(f"no strategy of node {node} is possible")
        self.cost[node], self.names[node] = self.cost[node][mask], self.names[node][mask]
        if node in self.load:
            self.load[node] = self.load[node][:, mask]
        for other, table in self.edges[node].items():
            self.link(node, other, table[mask])
        self.todo |= dict.fromkeys((node, *self.edges[node]))

    def shrink(self):
        """Apply the rules until none applies."""
        self.settle()
        while True:
            while self.todo and time.monotonic() < self.until:
                node = next(iter(self.todo))
                del self.todo[node]
                if node in self.cost:
                    self.normalise(node)
                    self.dominate(node)
                    if not self.follow(node):
                        self.eliminate(node)
            self.settle()
            if not self.todo or time.monotonic() > self.until:
                return

    def normalise(self, node: int):
        """Move each edge's least costs to its nodes; drop strategies that have no partner."""
        for other in list(self.edges[node]):
            for one, two in ((node, other), (other, node)):
                table = self.edges[one][two]
                least = table.min(1)
                if least.any():
                    self.cost[one] = self.cost[one] + least
                    self.link(one, two, table - np.where(least < math.inf, least, 0.0)[:, None])
                    self.keep(one, self.cost[one] < math.inf)
            if not self.edges[node][other].any():
                del self.edges[node][other], self.edges[other][node]
                self.todo[other] = None
        self.keep(node, self.cost[node] < math.inf)

    def dominate(self, node: int):
        """Drop strategies that another one of the node replaces at no cost."""
        cost = self.cost[node]
        more = cost[:, None] - cost  # at most how much strategy i costs above strategy j
        for table in self.edges[node].values():
            if table.max() < math.inf:
                more = more + (table[:, None] - table).max(2)
            else:
                with np.errstate(invalid="ignore"):
                    gaps = table[:, None] - table
                more = more + np.where(table == math.inf, -math.inf, gaps).max(2)
        replaces = more <= 0
        if node in self.load:
            replaces &= (self.load[node][:, :, None] <= self.load[node][:, None]).all(0)
        np.fill_diagonal(replaces, False)
        alive = np.full(len(cost), True)
        for one in np.argsort(-cost, kind="stable"):
            alive[one] = not replaces[alive, one].any()
        self.keep(node, alive)

    def follow(self, node: int) -> bool:
        """Merge the node into a neighbour whose every strategy allows only one of its own."""
        for other, table in self.edges[node].items():
            if table.max() < math.inf or not ((table < math.inf).sum(0) == 1).all():
                continue
            own = table.argmin(0)  # other's strategy -> the node's
            self.cost[other] = self.cost[other] + self.cost[node][own] + table.min(0)
            if node in self.load:
                self.carry(other, self.spans.pop(node), self.load.pop(node)[:, own])
            for third, more in list(self.edges[node].items()):
                if third != other:
                    self.join((other, third), more[own])
            self.remove(node, (other,), own)
            return True
        return False

    def carry(self, node: int, spans: np.ndarray, load: np.ndarray):
        """Add loads to a node, on spans that do not overlap."""
        if node in self.load:
            spans = np.concatenate([self.spans[node], spans])
            load = np.concatenate([self.load[node], load])
        edges = np.unique(spans)
        inside = (spans[:, :1] <= edges[:-1]) & (edges[1:] <= spans[:, 1:])  # (R, pieces)
        some = inside.any(0)
        self.spans[node] = np.stack([edges[:-1], edges[1:]], 1)[some]
        self.load[node] = inside.T[some].astype(float) @ load

    def eliminate(self, node: int):
        """Replace a node by costs of its neighbours, if it has few and no say in memory."""
        own, neighbours = self.cost[node], tuple(self.edges[node])
        if len(own) > 1 and (node in self.load or len(neighbours) > 2):
            return
        tables = [self.edges[node][other] for other in neighbours]
        if len(own) == 1:
            for other, table in zip(neighbours, tables, strict=True):
                self.cost[other] = self.cost[other] + table[0]
            total, neighbours = own, ()
        elif len(tables) == 2:
            one, two = (table.shape[1] for table in tables)
            if one * two * len(own) > LARGEST or one * two > 2 * len(own) * (one + two):
                return
            total = own[:, None, None] + tables[0][:, :, None] + tables[1][:, None]
        else:
            total = own[:, None] + tables[0] if tables else own
        self.remove(node, neighbours, total.argmin(0))
        if len(neighbours) == 2:
            self.join(neighbours, total.min(0))
        elif neighbours:
            self.cost[neighbours[0]] = self.cost[neighbours[0]] + total.min(0)
        else:
            self.constant += total.min(0)

    def remove(self, node: int, neighbours: tuple[int, ...], best: np.ndarray):
        """Take the node out; `best` is its strategy for each choice of the neighbours."""
        names = tuple(self.names[other] for other in neighbours)
        self.gone.append((node, neighbours, names, self.names[node][best]))
        self.todo |= dict.fromkeys(self.edges[node])
        if node in self.load:
            self.occupy(node, self.load[node][:, 0])
            del self.load[node], self.spans[node]
        for other in self.edges.pop(node):
            del self.edges[other][node]
        del self.cost[node], self.names[node]

    def occupy(self, node: int, amounts: np.ndarray):
        """Take memory away for the node's spans."""
        spans = np.searchsorted(self.times, self.spans[node])
        for (first, end), amount in zip(spans, amounts, strict=True):
            self.room[first:end] -= amount

    def settle(self):
        """Move least usages to `room`, drop times that cannot miss the limit, and loads without."""
        for node, load in self.load.items():
            if load.min(1).any():
                self.occupy(node, load.min(1))
                self.load[node] = load - load.min(1, keepdims=True)
        if self.room.min(initial=0.0) < 0:
            raise NoPlan("the memory limit is too low for the least usages")
        for node in list(self.load):
            for row, (first, end) in enumerate(np.searchsorted(self.times, self.spans[node])):
                if first < end:
                    self.keep(node, self.load[node][row] <= self.room[first:end].min())
        most = np.concatenate([np.empty(0), *(load.max(1) for load in self.load.values())])
        while len(self.times):
            firsts, ends = self.places()
            firsts, ends, high = (x[most > 0] for x in (firsts, ends, most))
            count = len(self.times) + 1
            change = np.bincount(firsts, high, count) - np.bincount(ends, high, count)
            needed = np.cumsum(change)[:-1] > self.room
            # A time is implied by the next one if no load ends between them, and so on.
            before = (np.bincount(ends, minlength=count)[1:-1] == 0) & (np.diff(self.room) <= 0)
            after = (np.bincount(firsts, minlength=count)[1:-1] == 0) & (np.diff(self.room) >= 0)
            needed[:-1] &= ~before
            needed[1:] &= ~after | np.append(False, before[:-1])
            self.times, self.room = self.times[needed], self.room[needed]
            if needed.all():
                break
        for node in list(self.load):
            firsts, ends = np.searchsorted(self.times, self.spans[node]).T
            useful = (firsts < ends) & self.load[node].any(1)
            self.load[node], self.spans[node] = self.load[node][useful], self.spans[node][useful]
            if not useful.all():
                self.todo[node] = None
            if not useful.any():
                del self.load[node], self.spans[node]

    def places(self) -> np.ndarray:
        """(2, all spans): the places in `times` of the first time, and of the end."""
        spans = [np.empty((0, 2), int), *(self.spans[node] for node in self.load)]
        return np.searchsorted(self.times, np.concatenate(spans)).T

    def whole(self, places: dict[int, int]) -> dict[int, int]:
        """Carry a choice for the nodes that are left back to all nodes.

        Args:
            places: node -> place in the node's arrays here.

        Returns:
            node -> its strategy, as the problem counts them.
        """
        found = {node: int(self.names[node][one]) for node, one in places.items()}
        for node, neighbours, names, best in reversed(self.gone):
            where = (
                int(np.searchsorted(known, found[other]))
                for other, known in zip(neighbours, names, strict=True)
            )
            found[node] = int(best[tuple(where)])
        return found


def barred(costs) -> np.ndarray:
    """Return the costs with infinity for what is forbidden."""
    costs = np.array(costs, dtype=float)
    costs[costs >= FORBIDDEN] = math.inf
    return costs

"""An oracle for times: rings and trees, message by message, on links that are busy or free.

Nothing here knows a formula. A message leaves when its rank has the numbers and its link is free.
It keeps the link busy for bytes / bandwidth, and arrives alpha later. Numbers travel too, so that a
test notices a ring which forgets a rank.
"""

import numpy as np


class Cluster:
    """Ranks with their numbers, when each number is ready, and what each link has carried."""

    def __init__(self, topology, size):
        self.topology = topology
        ranks = topology.gpus
        rng = np.random.default_rng(0)
        # as many chunks as ranks: any ring cuts its buffer where it likes
        self.numbers = rng.integers(0, 1000, (ranks, ranks))
        self.ready = np.zeros((ranks, ranks))  # seconds
        self.chunk = size / ranks  # bytes
        self.free, self.carried = {}, {}  # by link: a rank's to its switch, or its card
        self.total = self.numbers.sum(0)

    def kind(self, source, target):
        per_node = self.topology.gpus_per_node
        same = source // per_node == target // per_node
        return ("inside", self.topology.inside) if same else ("rail", self.topology.rail)

    def send(self, source, target, chunks, *, add):
        """Send chunks as one message; the function that delivers it is returned."""
        name, link = self.kind(source, target)
        size = len(chunks) * self.chunk
        start = max(self.free.get((name, source), 0.0), self.ready[source, chunks].max())
        self.free[name, source] = start + size / link.bytes_per_second
        self.carried[name, source] = self.carried.get((name, source), 0) + size
        arrives = self.free[name, source] + link.alpha
        values = self.numbers[source, chunks].copy()

        def deliver():
            before = self.numbers[target, chunks] if add else 0
            self.numbers[target, chunks] = before + values
            self.ready[target, chunks] = np.maximum(self.ready[target, chunks], arrives)

        return deliver

    def ring(self, ranks, chunks, *, gather):
        """A reduce-scatter of the chunks on a ring of ranks, or the all-gather after it.

        Returns:
            rank -> the chunks whose sum the rank holds after the reduce-scatter.
        """
        count = len(ranks)
        parts = np.split(np.array(chunks), count)
        for step in range(count - 1):
            deliveries = []
            for place, rank in enumerate(ranks):
                part = parts[(place - step - (0 if gather else 1)) % count]
                target = ranks[(place + 1) % count]
                deliveries.append(self.send(rank, target, part, add=not gather))
            for deliver in deliveries:
                deliver()
        return {rank: parts[place] for place, rank in enumerate(ranks)}

    @property
    def seconds(self):
        return self.ready.max()

    def busiest(self, name):
        return max((size for (kind, _), size in self.carried.items() if kind == name), default=0)


def flat_all_reduce(topology, size):
    cluster = Cluster(topology, size)
    ranks, chunks = list(range(topology.gpus)), range(topology.gpus)
    cluster.ring(ranks, chunks, gather=False)
    cluster.ring(ranks, chunks, gather=True)
    return cluster


def rails_all_reduce(topology, size):
    cluster = Cluster(topology, size)
    nodes, per_node = topology.nodes, topology.gpus_per_node
    machines = [list(range(m * per_node, (m + 1) * per_node)) for m in range(nodes)]
    held = {}
    for machine in machines:
        held |= cluster.ring(machine, range(topology.gpus), gather=False)
    for gather in (False, True):
        for place in range(per_node):
            rail = [machine[place] for machine in machines]
            cluster.ring(rail, held[rail[0]], gather=gather)
    for machine in machines:
        cluster.ring(machine, range(topology.gpus), gather=True)
    return cluster

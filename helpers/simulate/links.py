"""Seconds of a plan's messages on a cluster: each axis has its group of GPUs, and their links."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from helpers.plans.messages import Message, together
from helpers.simulate.collective_time import fastest, seconds
from helpers.simulate.kernels import Rates
from helpers.simulate.plan import Plan
from helpers.simulate.topology import Topology


class Links:
    """Seconds of a plan's messages on a cluster."""

    def __init__(self, plan: Plan, cluster: Topology, rates: Rates):
        self.plan, self.call, link = plan, rates.call, cluster.rail
        rail = replace(link, bytes_per_second=link.bytes_per_second * rates.network)
        self.cluster, self.groups = replace(cluster, rail=rail), {}

    def group(self, axes: str) -> Topology:
        """The links of a message's group: of the axes in its name, of "world" or of "ends"."""
        if axes not in self.groups:
            layout = self.plan.layout
            named = ["pp"] if axes == "ends" else axes.split()
            own = layout.axes if axes == "world" else [a for a in named if a in layout.axes]
            ranks = layout.group_of(0, *own) if own else [0]
            ranks = {ranks[0], ranks[-1]} if axes == "ends" else ranks
            self.groups[axes] = spread(self.cluster, ranks)
        return self.groups[axes]

    def seconds(self, messages: Iterable[Message]) -> float:
        """Of all the messages, one after another."""
        total = 0.0
        for one in together(messages):
            group = self.group(one.axis)
            way = fastest(one.call, one.payload, group)
            total += one.times * (self.call + seconds(one.call, one.payload, group, way))
        return total

    def send(self, size: float) -> float:
        """Activations to the next stage: each of the t GPUs sends a part, then all gather them.

        Narayanan et al. 2021, section 4.1.
        """
        if self.plan.ranks("pp") == 1:
            return 0.0
        t = self.plan.ranks("tp")
        gather = Message(axis="tp", call="all_gather", payload=size, ranks=t)
        gathers = 0.0 if self.plan.sequence else self.seconds([gather])
        return self.call + seconds("send", size / t, self.group("pp")) + gathers


def spread(cluster: Topology, ranks: Iterable[int]) -> Topology:
    """`cluster.group(ranks)`; where nodes hold unequal numbers of them, as if all held the most."""
    nodes = Counter(rank // cluster.gpus_per_node for rank in ranks)  # node -> ranks
    most = max(nodes.values())
    return replace(cluster, nodes=-(-nodes.total() // most), gpus_per_node=most)

"""Seconds of a plan's messages on a cluster: each axis has its group of GPUs, and their links."""

from collections.abc import Iterable
from dataclasses import replace

from helpers.models.shape import GPTShape
from helpers.plans.messages import Message, together
from helpers.simulate.collective_time import fastest, seconds
from helpers.simulate.kernels import NUMBER, Rates
from helpers.simulate.plan import AXES, Plan
from helpers.simulate.topology import Topology


class Links:
    """Seconds of a plan's messages on a cluster."""

    def __init__(self, plan: Plan, cluster: Topology, rates: Rates):
        self.plan, self.call, layout = plan, rates.call, plan.layout
        link = cluster.rail
        rail = replace(link, bytes_per_second=link.bytes_per_second * rates.network)
        cluster = replace(cluster, rail=rail)
        alone = cluster.group([0])
        named = {axis: (axis,) for axis in AXES} | {"dp": ("dp", "cp")}
        self.groups = {}
        for axis, several in named.items():
            own = [one for one in several if one in layout.axes]
            self.groups[axis] = cluster.group(layout.group_of(0, *own)) if own else alone
        stages = layout.group_of(0, "pp") if "pp" in layout.axes else [0]
        self.groups["ends"] = cluster.group({stages[0], stages[-1]})

    def seconds(self, messages: Iterable[Message], *axes: str) -> float:
        """Of the messages over these axes, one after another."""
        total = 0.0
        for one in together(messages):
            if one.axis in axes:
                group = self.groups[one.axis]
                way = fastest(one.call, one.payload, group)
                total += one.times * (self.call + seconds(one.call, one.payload, group, way))
        return total

    def ring(self, config: GPTShape) -> float:
        """Keys and values of a block, once around the axis cp."""
        parts, plan = self.plan.ranks("cp"), self.plan
        keys = config.key_heads * config.head_width / plan.ranks("tp")
        size = 2 * NUMBER * plan.micro * plan.tokens / parts * keys
        return (parts - 1) * seconds("send", size, self.groups["cp"])

    def send(self, size: float) -> float:
        """Activations to the next stage: each of the t GPUs sends a part, then all gather them.

        Narayanan et al. 2021, section 4.1.
        """
        if self.plan.ranks("pp") == 1:
            return 0.0
        t = self.plan.ranks("tp")
        gather = Message(axis="tp", call="all_gather", payload=size, ranks=t)
        gathers = 0.0 if self.plan.sequence else self.seconds([gather], "tp")
        return self.call + seconds("send", size / t, self.groups["pp"]) + gathers

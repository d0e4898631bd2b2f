"""Clusters of GPUs as numbers: nodes, the link within a node, one network card per GPU.

Inside a node, a switch (NVSwitch) joins all GPUs. Every GPU also has a network card. A **rail** is
the network between the cards number k of all nodes. Eight rails carry eight messages of a node at
the same time.

    node 0   GPU 0 ─┬─ switch ─┬─ GPU 1        node 1   GPU 0 ─┬─ switch ─┬─ GPU 1
             card 0 │          │ card 1                 card 0 │          │ card 1
                    └──────────┼──────── rail 0 ───────────────┘          │
                               └──────── rail 1 ──────────────────────────┘

The bandwidths below are those that NCCL reaches. The data sheets promise more: see `hardware`.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Link:
    """The cost of a message over one link: alpha + bytes / bytes_per_second (Hockney 1994).

    Attributes:
        alpha: seconds per message.
        bytes_per_second: each way; a link sends and receives at the same time.
        reduces: the switch behind the link adds, and copies one message to many receivers (NVLink
            SHARP within a node, SHARP on InfiniBand between nodes).

    Raises:
        ValueError: alpha is negative or infinite, or the bandwidth is not positive.
    """

    alpha: float
    bytes_per_second: float
    reduces: bool = False

    def __post_init__(self):
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be 0 or more seconds, and finite, not {self.alpha}")
        if not self.bytes_per_second > 0:  # infinite is allowed: a link that costs alpha alone
            raise ValueError(f"bytes_per_second must be positive, not {self.bytes_per_second}")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """GPUs on nodes, and their links. `group` gives the Topology of a process group.

    Attributes:
        nodes: how many nodes.
        gpus_per_node: ranks 0 to gpus_per_node - 1 are on node 0, the next ones on node 1, ….
        inside: from a GPU to the switch of its node.
        rail: from a network card into the network between nodes.
        gpus_per_card: GPUs that share a network card; 1 is one rail per GPU.

    Raises:
        ValueError: a count is no positive whole number.
    """

    nodes: int
    gpus_per_node: int
    inside: Link
    rail: Link
    gpus_per_card: int = 1

    def __post_init__(self):
        for name in ("nodes", "gpus_per_node", "gpus_per_card"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ValueError(f"{name} must be a positive whole number, not {count!r}")

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def of(self, gpus: int) -> "Topology":
        """The same machines, as many as `gpus` GPUs need.

        Raises:
            ValueError: the last node would be filled in part.
        """
        if gpus <= self.gpus_per_node:
            return replace(self, nodes=1, gpus_per_node=gpus)
        nodes, rest = divmod(gpus, self.gpus_per_node)
        if rest:
            raise ValueError(f"{gpus} GPUs do not fill nodes of {self.gpus_per_node}")
        return replace(self, nodes=nodes)

    def group(self, ranks: Iterable[int]) -> "Topology":
        """The part of the cluster that these ranks use, while all groups like theirs work.

        `cluster.group(Layout(dp=16, tp=8).groups("tp")[0])` lies within one node;
        `….groups("dp")[0]` has one GPU in each node, and so one rail.

        Raises:
            ValueError: a rank is not on the cluster or named twice, no rank is named, or the nodes
                hold unequal numbers of them.
        """
        ranks = list(ranks)
        outside = [rank for rank in ranks if not 0 <= rank < self.gpus]
        if outside or not ranks or len(set(ranks)) < len(ranks):
            shown = ", ".join(map(str, outside or ranks))[:80]
            raise ValueError(
                f"a group needs different ranks of 0 to {self.gpus - 1}, not {shown!r}"
            )
        counts = Counter(rank // self.gpus_per_node for rank in ranks)  # node -> ranks
        if len(set(counts.values())) > 1:
            raise ValueError(
                "the nodes hold unequal numbers of the group's ranks: "
                f"{min(counts.values())} to {max(counts.values())}"
            )
        return replace(self, nodes=len(counts), gpus_per_node=max(counts.values()))

    def in_network(self, *, inside: bool = False, rail: bool = False) -> "Topology":
        """The same cluster with switches that add, within the nodes, between them, or both."""
        return replace(
            self,
            inside=replace(self.inside, reduces=inside),
            rail=replace(self.rail, reduces=rail),
        )


# alpha: hwLatencies in NCCL 2.30's src/graph/tuning.cc, for a ring of large messages (protocol
# Simple); for small messages NCCL has protocols of a fifth of that (LL). NVLink: SM70_, SM80_ and
# SM90_NVLINK_BW times the number of links, src/graph/topo.h. Cards: what maintainers of NCCL expect
# of 200 and of 400 Gbit/s, github.com/NVIDIA/nccl-tests/issues/119 and /290. DGX-2H: 16 V100s, 8
# cards of 100 Gbit/s (Shoeybi et al. 2019, section 5), scaled from the card of 200 Gbit/s.
_NVLINK_ALPHA, _NETWORK_ALPHA = 3.4e-6, 14e-6

DGX_2H = Topology(
    nodes=1,
    gpus_per_node=16,
    inside=Link(alpha=_NVLINK_ALPHA, bytes_per_second=6 * 20.0e9),
    rail=Link(alpha=_NETWORK_ALPHA, bytes_per_second=12e9),
    gpus_per_card=2,
)
DGX_A100 = Topology(
    nodes=1,
    gpus_per_node=8,
    inside=Link(alpha=_NVLINK_ALPHA, bytes_per_second=12 * 20.0e9),
    rail=Link(alpha=_NETWORK_ALPHA, bytes_per_second=24e9),
)
DGX_H100 = Topology(
    nodes=1,
    gpus_per_node=8,
    inside=Link(alpha=_NVLINK_ALPHA, bytes_per_second=18 * 20.6e9),
    rail=Link(alpha=_NETWORK_ALPHA, bytes_per_second=48e9),
)

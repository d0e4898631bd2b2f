"""How long a collective takes on a cluster: the load of each link, and the seconds for that load.

There are three algorithms. A library picks the fastest for each payload, like `fastest`:

- **flat**: one ring through all GPUs, in order of rank. Only one card of each node works.
- **rails**: two levels, each with rings. An all-reduce is a reduce-scatter inside each node, an
  all-reduce on every rail at the same time, and an all-gather inside each node.
- **tree**: as rails, with trees in place of the rings between nodes. An all-reduce then takes
  2 log2(nodes) messages one after another between nodes, and not 2 (nodes - 1).

Letters: S is the payload in bytes, as in `helpers.comm.volume`; M the nodes; g the GPUs per node;
N = M g all GPUs.

Sources: Thakur, Rabenseifner and Gropp 2005 for rings and trees; Sanders, Speck and Träff 2009,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", for NCCL's trees; NCCL's own
cost model, src/graph/tuning.cc, for the number of a ring's steps that leave the node.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from helpers.plans.messages import Message, ring_factor
from helpers.simulate.topology import Link, Topology

ALGORITHMS = ("flat", "rails", "tree")
CALLS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send")


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load of one kind of link in one collective.

    Attributes:
        messages: one after another, on the longest way through the algorithm.
        bytes: on the busiest link, each way. If GPUs share a card, the bytes of all of them.
    """

    messages: int = 0
    bytes: float = 0.0

    def latency(self, link: Link) -> float:
        return self.messages * link.alpha

    def transfer(self, link: Link) -> float:
        return self.bytes / link.bytes_per_second


def loads(call: str, size: float, topology: Topology, algorithm: str) -> tuple[Load, Load]:
    """(inside, rail): the load of the links within nodes, and of the network cards.

    Args:
        call: one of CALLS. A "send" goes to the next node, or to the next GPU if there is one node.
        size: S in bytes, the whole payload. For all_gather the result, for reduce_scatter the
            input, for all_to_all one GPU's buffer.

    Raises:
        ValueError: no such call or algorithm, no such algorithm for the call, or a negative size.
    """
    if call not in CALLS:
        raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{algorithm!r} is none of {', '.join(ALGORITHMS)}")
    if not size >= 0:
        raise ValueError(f"size must be 0 or more bytes, not {size}")
    if topology.gpus == 1:
        return Load(), Load()
    if call == "send" and topology.nodes == 1:
        return Load(messages=1, bytes=size), Load()
    if call == "send":
        return Load(), Load(messages=1, bytes=size * topology.gpus_per_card)
    if call == "all_to_all":
        return all_to_all(size, topology, algorithm)
    if algorithm == "flat":
        return flat(call, size, topology)
    return by_rails(call, size, topology, tree=algorithm == "tree")


def flat(call: str, size: float, topology: Topology) -> tuple[Load, Load]:
    """One ring through all GPUs: each of its links carries the same bytes."""
    nodes, gpus = topology.nodes, topology.gpus
    times = 2 if call == "all_reduce" else 1
    carried = times * (size if call == "broadcast" else size * (gpus - 1) / gpus)
    inside = Load(messages=times * (gpus - nodes), bytes=carried * (topology.gpus_per_node > 1))
    if nodes == 1:
        return inside, Load()
    return inside, Load(messages=times * (nodes - 1), bytes=carried * sharers(topology))


def sharers(topology: Topology) -> float:
    """How many groups like this one share a card: 1 if the group fills a card in each node."""
    return max(1.0, topology.gpus_per_card / topology.gpus_per_node)


def by_rails(call: str, size: float, topology: Topology, *, tree: bool) -> tuple[Load, Load]:
    """Inside the nodes, and on all rails at the same time with S / g bytes on each."""
    gpus, nodes = topology.gpus_per_node, topology.nodes
    times = 2 if call == "all_reduce" else 1
    inside = Load(messages=times * (gpus - 1), bytes=times * size * (gpus - 1) / gpus)
    if call == "broadcast":  # in one node a chain, else a scatter, the rails, and an all-gather
        around = Load(messages=2 * (gpus - 1), bytes=2 * size * (gpus - 1) / gpus)
        inside = around if nodes > 1 else Load(messages=gpus - 1, bytes=size * (gpus > 1))
    if call == "all_reduce" and topology.inside.reduces:
        inside = min(inside, in_switch(size, gpus), key=lambda load: load.bytes)

    share = size / gpus * topology.gpus_per_card  # of all GPUs that share a card
    if nodes == 1:
        return inside, Load()
    if call == "all_reduce" and topology.rail.reduces:
        return inside, Load(messages=2, bytes=share)
    steps = (nodes - 1).bit_length() if tree else nodes - 1  # ceil(log2 nodes)
    carried = share if call == "broadcast" else share * (nodes - 1) / nodes
    if tree and call == "all_reduce" and nodes > 2:
        carried = share  # at most: in two trees, each with half of it, twice up and twice down
    return inside, Load(messages=times * steps, bytes=times * carried)


def in_switch(size: float, gpus: int) -> Load:
    """An all-reduce by a switch that adds: S (1 + 1/g) bytes, in place of 2 S (1 - 1/g).

    Each GPU sends its S bytes to the switch, and receives the sum of its share, S / g. It sends
    that share once, and the switch copies it to all GPUs. Below 4 GPUs a ring sends no more bytes.

    Source: a maintainer of NCCL, github.com/NVIDIA/nccl-tests/pull/239. The bandwidth that NCCL
    reaches this way on 8 H100s is a fifth below this limit: 480 of 577 GB/s of bus bandwidth.
    """
    return Load(messages=2, bytes=size * (1 + 1 / gpus))


def all_to_all(size: float, topology: Topology, algorithm: str) -> tuple[Load, Load]:
    """Every GPU sends S / N to every other.

    By rails: first inside the node to the GPU on the receiver's rail, then along that rail (NCCL
    calls it PXN). Flat: straight to each receiver; one card sends for the whole node.
    """
    gpus, nodes, all_gpus = topology.gpus_per_node, topology.nodes, topology.gpus
    leaves = size * (nodes - 1) / nodes  # of each GPU's payload
    if algorithm == "tree":
        raise ValueError("an all_to_all has no tree: every part goes to one receiver alone")
    if algorithm == "flat":
        within = Load(messages=gpus - 1, bytes=size * (gpus - 1) / all_gpus)
        through = gpus * leaves * sharers(topology)
        return within, Load(messages=all_gpus - gpus, bytes=through)
    within = Load(messages=gpus - 1, bytes=size * (gpus - 1) / gpus)
    return within, Load(messages=nodes - 1, bytes=leaves * topology.gpus_per_card)


def seconds(
    call: str, size: float, topology: Topology, algorithm: str = "rails", *, pipelined: bool = True
) -> float:
    """Seconds of a collective: the latency of all messages, plus the time of the bytes.

    Args:
        pipelined: True: the payload is cut into pieces, and one piece travels on the rails while
            another travels within the nodes, as in NCCL. The slower level decides; the time to fill
            the pipeline is left out. False: one level after the other, as three calls in a row. A
            flat ring uses all its links at once either way.

    Raises:
        ValueError: as `loads`.
    """
    inside, rail = loads(call, size, topology, algorithm)
    latency = inside.latency(topology.inside) + rail.latency(topology.rail)
    levels = inside.transfer(topology.inside), rail.transfer(topology.rail)
    return latency + (max(levels) if pipelined or algorithm == "flat" else sum(levels))


def fastest(call: str, size: float, topology: Topology) -> str:
    """The algorithm with the least `seconds`; of equals the first of ALGORITHMS."""
    names = [name for name in ALGORITHMS if (call, name) != ("all_to_all", "tree")]
    return min(names, key=lambda name: seconds(call, size, topology, name))


def message_seconds(
    messages: Iterable[Message], topology: Topology, algorithm: str | None = None
) -> float:
    """Seconds of a step's messages over one process group, one after another.

    Args:
        topology: of the group: `Topology.group` gives it.
        algorithm: None: the fastest for each payload.
    """
    total = 0.0
    for one in messages:
        way = algorithm or fastest(one.call, one.payload, topology)
        total += one.times * seconds(one.call, one.payload, topology, way)
    return total


def bus_factor(call: str, ranks: int) -> float:
    """Bytes that a link of a ring carries per byte of payload, as nccl-tests defines them.

    Bus bandwidth is algorithm bandwidth (payload / seconds) times this factor. Compare it with the
    bandwidth of a link, whatever the number of ranks, unless a switch adds.

    Source: github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    if call not in CALLS:
        raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")
    return ring_factor("all_gather" if call == "all_to_all" else call, ranks)


def bus_bandwidth(call: str, size: float, ranks: int, seconds: float) -> float:
    """Bytes/s, as the column "busbw" of nccl-tests: size / seconds · `bus_factor`."""
    return size / seconds * bus_factor(call, ranks)


def largest_bus_bandwidth(call: str, topology: Topology, algorithm: str = "rails") -> float:
    """Bytes/s of bus bandwidth for payloads so large that latency no longer counts.

    Raises:
        ValueError: one GPU alone, and as `loads`.
    """
    if topology.gpus == 1:
        raise ValueError("one GPU sends nothing, and has no bus bandwidth")
    inside, rail = loads(call, 1.0, topology, algorithm)
    slowest = max(inside.transfer(topology.inside), rail.transfer(topology.rail))
    return bus_bandwidth(call, 1.0, topology.gpus, slowest)

"""How long a collective takes on a cluster: what each link carries, and the seconds for that.

Three algorithms, of which a library picks the fastest for a payload (`fastest`):

- **flat**: one ring through all GPUs, in order of rank. Each node has one card at work.
- **rails**: within each node, then along all rails at once, then within each node again. An
  all-reduce is a reduce-scatter inside, an all-reduce per rail of what a GPU then holds, and an
  all-gather inside. Rings on each level.
- **tree**: as rails, but the rails' rings are trees: 2 log2(nodes) messages one after another in
  place of 2 (nodes - 1).

Letters: S the payload in bytes, as in `helpers.comm.volume`; M the nodes; g the GPUs per node.
Sources: Thakur, Rabenseifner and Gropp 2005 (rings, trees); Sanders, Speck and Träff 2009,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan" (NCCL's trees); NCCL's own
cost model, src/graph/tuning.cc (how many of a ring's steps leave the node).
"""

from dataclasses import dataclass

from helpers.simulate.topology import Link, Topology

ALGORITHMS = ("flat", "rails", "tree")
CALLS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one kind of link does: messages one after another, and bytes on the busiest link.

    Attributes:
        bytes: as the link's bandwidth counts them, each way; shares of a card are counted in.
    """

    messages: int = 0
    bytes: float = 0.0

    def latency(self, link: Link) -> float:
        return self.messages * link.alpha

    def transfer(self, link: Link) -> float:
        return self.bytes / link.bytes_per_second


def loads(call: str, size: float, topology: Topology, algorithm: str) -> tuple[Load, Load]:
    """(inside, rail): what the busiest link within a node does, and the busiest network card.

    Args:
        call: one of CALLS. A "send" goes to the next node, or within the only one.
        size: S in bytes, the whole payload: of all_gather the result, of reduce_scatter the input,
            of all_to_all what one GPU holds.

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
    """One ring through all GPUs: every link carries the same bytes, one card of each node too."""
    nodes, gpus = topology.nodes, topology.gpus
    times = 2 if call == "all_reduce" else 1
    carried = times * (size if call == "broadcast" else size * (gpus - 1) / gpus)
    inside = Load(messages=times * (gpus - nodes), bytes=carried * (topology.gpus_per_node > 1))
    if nodes == 1:
        return inside, Load()
    return inside, Load(messages=times * (nodes - 1), bytes=carried * sharers(topology))


def sharers(topology: Topology) -> float:
    """How many groups like this share a card; 1 where the group has a card in each node."""
    return max(1.0, topology.gpus_per_card / topology.gpus_per_node)


def by_rails(call: str, size: float, topology: Topology, *, tree: bool) -> tuple[Load, Load]:
    """First within the nodes, then on all rails at once, with S / g on each of them."""
    gpus, nodes = topology.gpus_per_node, topology.nodes
    times = 2 if call == "all_reduce" else 1
    inside = Load(messages=times * (gpus - 1), bytes=times * size * (gpus - 1) / gpus)
    if call == "broadcast":  # alone in a node a chain; else scatter, rails, all-gather
        around = Load(messages=2 * (gpus - 1), bytes=2 * size * (gpus - 1) / gpus)
        inside = around if nodes > 1 else Load(messages=gpus - 1, bytes=size * (gpus > 1))
    if call == "all_reduce" and topology.inside.reduces:
        inside = min(inside, in_switch(size, gpus), key=lambda load: load.bytes)

    share = size / gpus * topology.gpus_per_card  # bytes of one card's rank, and of its neighbours
    if nodes == 1:
        return inside, Load()
    if call == "all_reduce" and topology.rail.reduces:
        return inside, Load(messages=2, bytes=share)
    steps = (nodes - 1).bit_length() if tree else nodes - 1  # ceil(log2 nodes)
    carried = share if call == "broadcast" else share * (nodes - 1) / nodes
    if tree and call == "all_reduce" and nodes > 2:
        carried = share  # at most, in two trees: up with all of it, and down with all of it
    return inside, Load(messages=times * steps, bytes=times * carried)


def in_switch(size: float, gpus: int) -> Load:
    """An all-reduce by a switch that adds: S (1 + 1/g) bytes, in place of 2 S (1 - 1/g).

    Each GPU hands all of its S to the switch, and gets the sum of its own share, S / g. It sends
    that share once, and the switch copies it to all. Below 4 GPUs a ring sends no more bytes.

    Source: a maintainer of NCCL, github.com/NVIDIA/nccl-tests/pull/239. The bandwidth that NCCL
    reaches this way on 8 H100s is a fifth below this limit: 480 of 577 GB/s of bus bandwidth.
    """
    return Load(messages=2, bytes=size * (1 + 1 / gpus))


def all_to_all(size: float, topology: Topology, algorithm: str) -> tuple[Load, Load]:
    """Every GPU sends S / N to every other.

    By rails: first to the GPU of the own node on the receiver's rail, then along that rail (NCCL's
    PXN). Flat: straight to each receiver, all of a node through one card.
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
    """Time of a collective: all latencies, and the bytes of the two levels.

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


def bus_factor(call: str, ranks: int) -> float:
    """Bytes that the slowest link of a ring carries, per byte of payload, as nccl-tests defines it.

    Bus bandwidth is algorithm bandwidth (payload / seconds) times this factor. Compare it with the
    bandwidth of a link, whatever the number of ranks, unless a switch adds.

    Source: github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    if call not in CALLS:
        raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")
    if call in ("broadcast", "send"):
        return 1.0
    return (2 if call == "all_reduce" else 1) * (ranks - 1) / ranks


def bus_bandwidth(call: str, size: float, ranks: int, seconds: float) -> float:
    """Bytes/s, as the column "busbw" of nccl-tests: size / seconds · `bus_factor`."""
    return size / seconds * bus_factor(call, ranks)

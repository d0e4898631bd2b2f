"""Alpa's plan of a model on a cluster: stages of layers on submeshes, and each operator's strategy.

Each stage may run on any submesh, seen as any grid of "dp" by "tp": the batch is cut along the
first, and the integer program chooses along the second. The dynamic program then cuts the layers.

A stage is planned for one micro-batch in flight, once for each submesh and grid, as in the paper. A
place in the pipeline that needs more in flight than fit rejects it: no slower, smaller plan of the
same stage is tried.

Source: Zheng et al. 2022, arXiv:2201.12023, sections 4 and 5, figure 3.
"""

from collections.abc import Hashable

from helpers.planner.inter_operator import Cost, Inter, inter_operator, submeshes
from helpers.planner.intra_operator import intra_operator
from helpers.planner.operators import operators
from helpers.planner.problem import NoPlan
from helpers.planner.strategies import ROLES, Grid
from helpers.simulate.topology import Topology

BY_BATCH = {"dp": {"batch", "sharded"}, "tp": set(ROLES) - {"sharded"}}


def grid(cluster: Topology, dp: int, tp: int) -> Grid:
    """Devices of a submesh: neighbours along "tp", and the link that each axis needs."""
    node = cluster.gpus_per_node
    inside, rail = cluster.inside, cluster.rail
    links = {"dp": inside if dp * tp <= node else rail, "tp": inside if tp <= node else rail}
    return Grid(sizes={"dp": dp, "tp": tp}, links=links)


def alpa(
    config,
    cluster: Topology,
    *,
    sequences: int,
    micro_batches: int,
    flops_per_second: float,
    tokens: int | None = None,
    memory: float | None = None,
    allowed=None,
) -> Inter:
    """Plan a pipeline. Every block is a layer; the ends belong to the first and the last block.

    Args:
        config: a GPT with attention or Mamba-2 blocks.
        sequences, tokens: of a micro-batch, over all devices of a stage; None: the whole context.
        micro_batches: of a step.
        flops_per_second: of a device, sustained.
        memory: bytes of a device; None: enough.
        allowed: as for `strategies`; None: only batch roles along "dp".

    Returns:
        The stages, each with its mesh ((nodes, GPUs of each), (dp, tp)).

    Raises:
        NoPlan: nothing fits.
    """
    tokens, allowed = tokens or config.context, allowed or BY_BATCH
    meshes = {
        (shape, (devices // tp, tp)): devices
        for shape, devices in submeshes(cluster.nodes, cluster.gpus_per_node).items()
        for tp in (2**k for k in range(cluster.gpus_per_node.bit_length()))
        if shape[1] % tp == 0 and sequences % (devices // tp) == 0
    }
    known: dict[Hashable, Cost | None] = {}

    def stage(start: int, stop: int, mesh) -> Cost | None:
        ends = {"first": start == 0, "last": stop == config.layers}
        key = (config.mixers[start:stop], *ends.values(), mesh)
        if key not in known:
            parts = operators(config, sequences, tokens, range(start, stop), **ends)
            options = {"micro_batches": micro_batches, "allowed": allowed, "memory": memory}
            try:
                found = intra_operator(parts, grid(cluster, *mesh[1]), **options)
            except NoPlan:
                known[key] = None
            else:
                flops = 3 * sum(one.flops for one in parts) / meshes[mesh]
                known[key] = Cost(
                    seconds=flops / flops_per_second + found.seconds,
                    bytes=found.states,
                    each=found.kept,
                )
        return known[key]

    return inter_operator(
        config.layers, stage, meshes=meshes, devices=cluster.gpus, micro_batches=micro_batches,
        memory=float("inf") if memory is None else memory,
    )  # fmt: skip

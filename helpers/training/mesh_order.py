"""The order of a mesh: the last axes stay inside a node, and the others cross nodes.

    Layout(dp=2, ep=2)    experts' ranks are neighbours: rows stay inside, experts' gradients cross
    Layout(ep=2, dp=2)    an expert's copies are neighbours: its gradients stay inside, rows cross

Per step, an expert's gradients have the size of the expert, and rows that of the tokens. DeepSpeed
calls these orders E + D and D + E. On nodes of 8 GPUs, D + E cut its bytes between nodes for the
update to about an eighth. Table 1 of its document has an all-reduce of 11.5 s before and 0.45 s
after, for a mixture on 1,024 GPUs. Most of that is due to larger buckets, 5 to 8 times, and about 3
times to the order.

Source: DeepSpeed, "Communication Optimizations for Large-Scale Training", section 2,
github.com/deepspeedai/DeepSpeed, blogs/comm-opt.
"""

import time
from collections.abc import Iterable
from functools import partial

import torch

from helpers.comm.ledger import ledger
from helpers.comm.links import link_bytes, paced_between
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.paced import PacedTransport
from helpers.comm.transport import GroupTransport
from helpers.data.batch import random_batch
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.mixture.transform import expert_parallel
from helpers.parallel.trainer import Recipe

WARMUP = 2  # steps: the second step has buckets


def step_on_nodes(
    worker,
    config,
    layout: Layout,
    *,
    local: int,
    bytes_per_second: float,
    sequences: int = 1,
    steps: int = 3,
) -> dict:
    """Train on nodes with paced links between them.

    launch(step_on_nodes, 4, layout=Layout(ep=2, dp=2), local=2, bytes_per_second=1e7, config=…)

    Args:
        config: of a model with experts.
        layout: of the axes dp and ep. Rank r is on node r // local.
        local: ranks of a node.
        bytes_per_second: that each rank sends to other nodes. Inside a node nothing is paced.
        sequences: of each rank.
        steps: to measure.

    Returns:
        "seconds" of the fastest step; "links", the planned seconds of a step's calls between nodes,
        of which the backward hides a part; by axis ("dp", "ep", or "world" for all ranks) the bytes
        that this rank sends in a step: {"inside": …, "between": …}.
    """
    torch.set_num_threads(1)
    make, made = paced_between(local, bytes_per_second=bytes_per_second), []

    def links(group):
        made.append(make(group))
        return made[-1]

    recipe = Recipe(
        transform=partial(expert_parallel, transport=links),
        owner=partial(Replicated, transport=links),
    )
    trainer = recipe(config, 0, make_mesh(layout, worker.device), device=worker.device)
    batch = random_batch(worker.rank, sequences, config.context, config.vocab)
    for _ in range(WARMUP):
        with ledger() as log:
            trainer.step(batch)
    seconds, busy = [], -busy_seconds(made)
    for _ in range(steps):
        start = time.perf_counter()
        trainer.step(batch)
        seconds.append(time.perf_counter() - start)
    busy += busy_seconds(made)
    trainer.close()
    axes = dict.fromkeys(entry.axes for entry in log.entries)
    sent = {
        axis or "world": link_bytes(
            [entry for entry in log.entries if entry.axes == axis], worker.rank, local
        )
        for axis in axes
    }
    return {"seconds": min(seconds), "links": busy / steps, **sent}


def busy_seconds(transports: Iterable[GroupTransport]) -> float:
    return sum(one.busy for one in transports if isinstance(one, PacedTransport))

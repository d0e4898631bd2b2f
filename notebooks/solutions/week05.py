"""Solutions of week 5: pipeline parallel, and three axes at once."""

import torch
import torch.distributed as dist

from helpers.comm.mesh import Layout
from helpers.plans.schedules import Message


def order_1f1b(ranks, micro_batches):
    """Warm up with as many forwards as ranks come after; then pairs; then the rest."""
    rows = []
    for rank in range(ranks):
        warm = min(ranks - 1 - rank, micro_batches)
        row = [f"F{micro}" for micro in range(warm)]
        for micro in range(micro_batches):
            if warm + micro < micro_batches:
                row.append(f"F{warm + micro}")
            row.append(f"B{micro}")
        rows.append(row)
    return rows


def bubble_share(ranks, micro_batches, chunks):
    """In units of F + B of a rank: m of work, (p - 1)/v of waiting."""
    idle = (ranks - 1) / chunks
    return idle / (micro_batches + idle)


def pipeline_step(worker, stage, micro_batches, targets):
    """GPipe: all forwards, then all backwards; each loss is divided by the rows of all."""
    rank, last = worker.rank, worker.world_size - 1
    rows = sum(len(batch) for batch in micro_batches)
    inputs, outputs, total = [], [], 0.0
    for batch in micro_batches:
        x = batch if rank == 0 else torch.empty_like(batch)
        if rank > 0:
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank < last:
            dist.send(y.detach(), dst=rank + 1)
        inputs.append(x)
        outputs.append(y)
    for x, y, target in zip(inputs, outputs, targets, strict=True):
        if rank == last:
            loss = ((y - target) ** 2).sum() / rows
            loss.backward()
            total += loss.item()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=rank + 1)
            y.backward(gradient)
        if rank > 0:
            dist.send(x.grad, dst=rank - 1)
    return total if rank == last else None


def fuse_messages(steps):
    """All messages between two computations are one group: `send_forward_recv_backward`."""
    groups = []
    for step in steps:
        after_message = groups and isinstance(groups[-1][0], Message)
        if isinstance(step, Message) and after_message:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def place_axes(nodes, gpus_per_node, heads, layers, state_bytes, gpu_bytes):
    """The fewest GPUs for one model; of those layouts, the one with the most tensor parallelism."""
    world, fitting = nodes * gpus_per_node, []
    for tp in range(1, gpus_per_node + 1):
        for pp in range(1, layers + 1):
            whole = gpus_per_node % tp == heads % tp == layers % pp == 0
            if whole and world % (tp * pp) == 0 and state_bytes <= tp * pp * gpu_bytes:
                fitting.append((tp * pp, -tp, tp, pp))
    *_, tp, pp = min(fitting)
    return Layout(pp=pp, dp=world // (tp * pp), tp=tp)

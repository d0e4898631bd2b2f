"""Solutions of week 6: ZeRO."""

import torch
import torch.distributed as dist

from helpers.comm.collectives import ring_reduce_scatter


def bytes_per_rank(
    params, ranks, stage, parameter_bytes, gradient_bytes, optimizer_bytes
):
    """Each stage shards one kind more; -(-a // b) rounds up."""
    shard = -(-params // ranks)  # numbers: the buffer is padded to equal shards
    return {
        "parameters": parameter_bytes * (shard if stage >= 3 else params),
        "gradients": gradient_bytes * (shard if stage >= 2 else params),
        "optimizer": optimizer_bytes * (shard if stage >= 1 else params),
    }


def shard_flat(worker, tensors):
    """`clone` frees the whole buffer; `gather` keeps shapes, and no tensor."""
    shapes = [tensor.shape for tensor in tensors]
    numbers = sum(tensor.numel() for tensor in tensors)
    size = -(-numbers // worker.world_size)
    flat = tensors[0].new_zeros(size * worker.world_size)
    flat[:numbers] = torch.cat([tensor.flatten() for tensor in tensors])
    shard = flat[worker.rank * size : (worker.rank + 1) * size].clone()

    def gather(shard):
        whole = shard.new_empty(len(shard) * worker.world_size)
        dist.all_gather(list(whole.split(len(shard))), shard)
        parts = whole[:numbers].split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    return shard, gather


def zero_1(worker, params, numbers, make_optimizer, max_norm):
    """Reduce-scatter, clip by the norm over all ranks, update the own shard, all-gather."""
    size = len(params) // worker.world_size
    first = worker.rank * size
    shard = params[first : first + size].clone()
    optimizer = make_optimizer([shard])
    real = min(max(numbers - first, 0), size)  # of the shard; the rest is padding

    def step(gradients):
        shard.grad = torch.empty_like(shard)
        ring_reduce_scatter(shard.grad, gradients)
        shard.grad /= worker.world_size
        norm = shard.grad[:real].square().sum()
        dist.all_reduce(norm)
        norm = norm.sqrt()
        shard.grad *= min(1.0, max_norm / norm)
        optimizer.step()
        dist.all_gather(list(params.split(size)), shard)
        return norm.item()

    return step


def bytes_per_step(params, ranks, stage, number_bytes, micro_batches):
    """Count reduce-scatters and all-gathers; an all-reduce is one of each."""
    m = micro_batches
    collectives = {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[stage]
    return collectives * params * number_bytes * (ranks - 1) / ranks

"""Solutions of week 11: offload; slow links."""

import torch
import torch.distributed as dist


def least_link_bytes(room, params, passes):
    """Spend the room where it saves most: 2 bytes of each parameter first, then the other 14."""
    here = min(params, room / 2)  # at least their own 2 bytes stay
    alone = min(here, max(0.0, here - (room - 2 * here) / 14))  # no more than these
    return alone * (2 + 2) + (params - here) * (2 + 2 * passes)


def needed_bandwidth(share, moved, tokens, flops_per_second, recompute, overlap):
    """Solve the efficiency for the seconds of the link, for one parameter."""
    compute = tokens * (2 + 4 + 2 * recompute) / flops_per_second
    step = compute / share
    return moved / (step if overlap else step - compute)


def delayed_step(parameters, master, waiting, gradient, update):
    """Compute with what the GPU has; update with the last gradient; hand both on."""
    new = gradient(parameters)
    updated = master if waiting is None else update(master, waiting)
    return updated.float(), updated, new


def quantise_blocks(row, size, bits):
    """A code is the nearest whole number of the block's steps, so it is off by half a step."""
    most = 2 ** (bits - 1) - 1
    blocks = row.split(size)
    scales = torch.stack([block.abs().max() / most for block in blocks])
    own = scales.repeat_interleave(torch.tensor([len(block) for block in blocks]))
    codes = (row / own.where(own > 0, 1.0)).round()
    return codes, scales, own / 2


def second_shard(numbers, nodes, local, rank):
    """The rank's own shard among all ranks, and its part of the node's copy."""
    shard, second = numbers // (nodes * local), numbers // local
    place = rank % local
    return (rank * shard, (rank + 1) * shard), (place * second, (place + 1) * second)


def break_even_bandwidth(params, nodes, local, block, encode, decode):
    """Bytes that a rank saves between the nodes, over the seconds that its quantiser needs."""
    scales = 4 * params / block
    exact, sent = 6 * params, (params + scales) + (params / 2 + scales)
    fewer = (exact - sent) * (nodes - 1) / (nodes * local)
    gradients = params + params / local
    encoded, decoded = params / (nodes * local) + gradients, params + gradients
    return fewer / (encoded / encode + decoded / decode)


def outer_round(worker, anchor, own, momentum, lr, beta):
    """The mean of the outer gradients, and a step of Nesterov from the anchor."""
    gradient = anchor - own
    dist.all_reduce(gradient)
    gradient /= worker.world_size
    momentum = beta * momentum + gradient
    return anchor - lr * (gradient + beta * momentum), momentum

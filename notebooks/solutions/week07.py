"""Solutions of week 7: FSDP, DeepSpeed and Accelerate."""

import torch

# FSDP ------------------------------------------------------------------------------------------


def choose_wrapping(blocks, block_bytes, ranks, budget):
    """Try every number that divides the blocks; keep the largest that fits."""
    found = None
    for per_unit in range(1, blocks + 1):
        if blocks % per_unit == 0:
            peak = peak_bytes(blocks // per_unit, per_unit * block_bytes, ranks)
            if peak <= budget:
                found = per_unit, peak
    return found


def peak_bytes(units, unit, ranks):
    """Shards and Adam's two averages, then the worst moment of the backward."""
    states = 3 * units * unit / ranks
    if units == 1:  # the gradients' buffer, gloo's copy of it, and the received shard
        return states + 2 * unit + unit / ranks
    if units == 2:  # parameters, gradients, the other unit's buffer and its shard
        return states + 3 * unit + unit / ranks
    # parameters, gradients, the next unit's gather, the last unit's reduce-scatter; the
    # gradient shards of all units but this one and the first
    return states + 4 * unit + (units - 2) * unit / ranks


def reshard_rows(worker, rows, saved_ranks, read):
    """Each file's rows, cut to this rank's rows, counted from the file's first row."""

    def bounds(rank, ranks):
        size = -(-rows // ranks)
        return min(rank * size, rows), min((rank + 1) * size, rows)

    start, stop = bounds(worker.rank, worker.world_size)
    pieces = [read(0, 0, 0)]  # no rows: the right shape for a rank that has none
    for saved in range(saved_ranks):
        first, last = bounds(saved, saved_ranks)
        low, high = max(start, first), min(stop, last)
        if low < high:
            pieces.append(read(saved, low - first, high - first))
    return torch.cat(pieces)


# DeepSpeed -------------------------------------------------------------------------------------


def read_deepspeed(settings, ranks, params):
    """Two sizes give the third; each stage shards one kind more; offloaded states leave."""
    batch = settings.get("train_batch_size")
    micro = settings.get("train_micro_batch_size_per_gpu")
    steps = settings.get("gradient_accumulation_steps")
    if steps is None:
        steps = batch // (micro * ranks) if batch and micro else 1
    if micro is None:
        micro = batch // (steps * ranks)

    zero = settings.get("zero_optimization", {})
    sharded = ["optimizer", "gradients", "parameters"][: zero.get("stage", 0)]
    sizes = {"parameters": 2, "gradients": 2, "optimizer": 12}  # in 16 bits
    away = set()
    if zero.get("offload_optimizer", {}).get("device", "none") != "none":
        away |= {"optimizer", "gradients"}
    if zero.get("offload_param", {}).get("device", "none") != "none":
        away |= {"parameters"}
    here = [kind for kind in sizes if kind not in away]
    return {
        "batch": micro * steps * ranks,
        "micro_batch": micro,
        "accumulation": steps,
        "sharded": sharded,
        "gpu_bytes": sum(
            sizes[kind] * params / (ranks if kind in sharded else 1) for kind in here
        ),
    }

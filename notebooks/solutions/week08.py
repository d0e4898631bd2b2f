"""Solutions of week 8: mixed precision."""

import torch
import torch.distributed as dist


def scaled_step(worker, master, gradient, scaler, lr, max_norm):
    """Cast, reduce, look for overflow, unscale, clip, update; then adapt the scale."""
    gradient = gradient.float()
    dist.all_reduce(gradient)
    gradient /= scaler["scale"]
    norm = gradient.norm()
    skipped = not bool(norm.isfinite())  # of the sum, so it is the same on all ranks
    if skipped:
        scaler["scale"] *= scaler["backoff"]
        scaler["good_steps"] = 0
        return True
    master -= lr * gradient * min(1.0, max_norm / max(norm.item(), 1e-12))
    scaler["good_steps"] += 1
    if scaler["good_steps"] == scaler["interval"]:
        scaler["scale"] *= scaler["growth"]
        scaler["good_steps"] = 0
    return False


def master_adam(parameter, master, moments, gradient, step, lr, betas, eps):
    """Compute in fp32, keep the result there, and round it once into the parameter."""
    gradient = gradient.float()
    first, second = moments
    first.lerp_(gradient, 1 - betas[0])
    second.lerp_(gradient.square(), 1 - betas[1])
    mean = first / (1 - betas[0] ** step)
    variance = second / (1 - betas[1] ** step)
    master -= lr * mean / (variance.sqrt() + eps)
    parameter.copy_(master)


def round_stochastically(x, generator):
    """Add 16 random bits below bf16's last bit, then drop these 16 bits."""
    bits = x.view(torch.int32)
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, generator=generator)
    kept = (bits + noise) & -(2**16)
    return kept.view(torch.float32).bfloat16()


def mixed_bytes(params, ranks, stage, low_bytes, master, moment_bytes):
    """ZeRO shards the optimizer's state first, then gradients, then parameters."""
    shard = -(-params // ranks)
    return {
        "parameters": low_bytes * (shard if stage >= 3 else params),
        "gradients": low_bytes * (shard if stage >= 2 else params),
        "master copy": 4 * (shard if stage >= 1 else params) if master else 0,
        "moments": 2 * moment_bytes * (shard if stage >= 1 else params),
    }

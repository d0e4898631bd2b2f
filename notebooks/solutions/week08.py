"""Solutions of week 8: mixed precision, and the update rule of a kernel."""

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


def fused_update(
    p,
    g,
    m,
    v,
    overflow,
    scale,
    lr,
    beta1,
    beta2,
    correction1,
    correction2,
    eps,
    weight_decay,
):
    """Compute all, then keep the old numbers after an overflow; round only the copy."""
    import triton.language as tl  # here, because Triton is there on Linux only

    g = g.to(tl.float32) / scale
    new_m = beta1 * m + (1 - beta1) * g
    new_v = beta2 * v + (1 - beta2) * g * g
    step = lr * (new_m / correction1) / (tl.sqrt(new_v / correction2) + eps)
    new_p = p * (1 - lr * weight_decay) - step
    p = tl.where(overflow, p, new_p)
    m = tl.where(overflow, m, new_m)
    v = tl.where(overflow, v, new_v)
    return p, m, v, p.to(tl.float16)

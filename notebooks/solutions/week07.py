"""Solutions of week 7: FSDP, DeepSpeed and Accelerate."""

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

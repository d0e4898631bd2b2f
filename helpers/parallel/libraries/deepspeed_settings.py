"""Complete DeepSpeed's settings for a training beside its twin."""

import copy
from collections.abc import Mapping

from helpers.parallel.optimizer import OptimizerConfig

BUCKET = 50_000  # numbers: DeepSpeed's default, 5e8, is for GPUs


def completed(settings: Mapping, rule: OptimizerConfig, micro_batches: int, stage: int) -> dict:
    """Fill in what settings for the twin leave out.

    The buckets get room for 50,000 numbers instead of DeepSpeed's 500 million, and a PyTorch
    optimizer may be combined with every stage and with offloading.

    Raises:
        ValueError: the settings have another number of micro-batches or another limit of the norm.
    """
    full = copy.deepcopy(dict(settings))
    needed = {"gradient_accumulation_steps": micro_batches, "gradient_clipping": rule.clip or 0.0}
    for field, value in needed.items():
        if full.setdefault(field, value) != value:
            raise ValueError(
                f"the settings have {field} = {full[field]}, and the strategy's arguments "
                f"give {value}: choose one"
            )
    if not {"train_batch_size", "train_micro_batch_size_per_gpu"} & full.keys():
        full["train_micro_batch_size_per_gpu"] = 1  # DeepSpeed only multiplies it
    zero = full.setdefault("zero_optimization", {})
    zero.setdefault("stage", stage)
    for bucket in ("reduce_bucket_size", "allgather_bucket_size"):
        zero.setdefault(bucket, BUCKET)
    full.setdefault("zero_allow_untested_optimizer", True)
    full.setdefault("zero_force_ds_cpu_optimizer", False)
    return full

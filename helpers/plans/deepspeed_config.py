"""Read a DeepSpeed configuration before it runs: batch, what is sharded, bytes on each rank.

P  parameters        N  ranks

DeepSpeed calls a rank a GPU, and a rank's part of a micro-batch its "micro batch".

Source: DeepSpeed's documentation, "DeepSpeed Configuration JSON" (deepspeed.ai/docs/config-json),
sections "Batch Size Related Parameters", "ZeRO Optimizations" and "Asynchronous I/O"; Rajbhandari
et al. 2020, arXiv:1910.02054, section 5, for the bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from helpers.plans.zero_memory import FP32, MIXED, States, ranks_of, stage_of, zero_memory

KINDS = ("optimizer", "gradients", "parameters")  # in the order in which the stages shard them
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
DEVICES = ("none", "cpu", "nvme")
# In stages 1 to 3 DeepSpeed keeps fp32 master copies also of fp32 parameters: measured here.
FP32_WITH_COPIES = States(parameters=4, gradients=4, optimizer=12)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a configuration means for N ranks.

    Attributes:
        stage: of ZeRO, 0 to 3.
        ranks: N.
        micro_batch: sequences of one rank in one forward.
        accumulation: forwards of one rank for each update.
        sixteen_bit: whether bf16 or fp16 is enabled.
        optimizer_on, parameters_on: the device where they wait: "none" (the GPU), "cpu" or "nvme".
    """

    stage: int
    ranks: int
    micro_batch: int
    accumulation: int
    sixteen_bit: bool
    optimizer_on: str
    parameters_on: str

    @property
    def batch(self) -> int:
        """Sequences of all ranks for each update."""
        return self.micro_batch * self.accumulation * self.ranks

    @property
    def sharded(self) -> tuple[str, ...]:
        """The kinds of model states of which each rank holds 1/N."""
        return KINDS[: self.stage]

    @property
    def each(self) -> States:
        """Bytes for one parameter, before sharding."""
        if self.sixteen_bit:
            return MIXED
        return FP32_WITH_COPIES if self.stage else FP32

    def states(self, params: int) -> States:
        """Bytes of the model states of one rank, wherever they wait."""
        return zero_memory(params, self.ranks, self.stage, each=self.each)

    def on_gpu(self, params: int) -> States:
        """Bytes that one GPU holds between steps: all states but the offloaded ones.

        From stage 2 on, gradients go to the CPU with the optimizer (Ren et al. 2021,
        "ZeRO-Offload", arXiv:2101.06840, section 4). Not measured here, for want of a GPU.
        """
        states, kept = self.states(params), self.optimizer_on == "none"
        return States(
            parameters=states.parameters if self.parameters_on == "none" else 0,
            gradients=states.gradients if kept or self.stage < 2 else 0,
            optimizer=states.optimizer if kept else 0,
        )


def read(settings: Mapping, ranks: int) -> Reading:
    """Read DeepSpeed's settings for a number of ranks.

    Raises:
        ValueError: no batch size; sizes that contradict each other; a stage that does not exist;
            or offloading that the stage cannot do.
    """
    micro, accumulation = batch_of(settings, ranks_of(ranks))
    zero = settings.get("zero_optimization", {})
    stage = stage_of(zero.get("stage", 0))
    optimizer = zero.get("offload_optimizer", {}).get("device", "none")
    parameters = zero.get("offload_param", {}).get("device", "none")
    for device in (optimizer, parameters):
        if device not in DEVICES:
            raise ValueError(f"DeepSpeed offloads to {' or '.join(DEVICES[1:])}, not to {device!r}")
    if stage < {"none": 0, "cpu": 1, "nvme": 3}[optimizer]:
        raise ValueError(f"stage {stage} cannot offload the optimizer to {optimizer}")
    if parameters != "none" and stage < 3:
        raise ValueError(f"stage {stage} cannot offload parameters: only stage 3 shards them")
    return Reading(
        stage=stage,
        ranks=ranks,
        micro_batch=micro,
        accumulation=accumulation,
        sixteen_bit=any(settings.get(kind, {}).get("enabled") for kind in ("bf16", "fp16")),
        optimizer_on=optimizer,
        parameters_on=parameters,
    )


def batch_of(settings: Mapping, ranks: int) -> tuple[int, int]:
    """Return (micro-batch of a rank, accumulation): of three sizes, two give the third.

    With the batch or the micro-batch alone, DeepSpeed does not accumulate.
    """
    batch, micro, steps = (settings.get(field) for field in BATCH)
    if batch is None and micro is None:
        raise ValueError(f"name {BATCH[0]} or {BATCH[1]}: DeepSpeed has no default for both")
    if 0 in (micro, steps):
        raise ValueError(f"{BATCH[1]} and {BATCH[2]} are at least 1, not {micro} and {steps}")
    if steps is None:
        steps = 1 if batch is None or micro is None else batch // (micro * ranks)
    if micro is None:
        micro = batch // (steps * ranks)
    if batch not in (None, micro * steps * ranks) or min(micro, steps) < 1:
        raise ValueError(
            f"the sizes do not agree: batch {batch} is not micro-batch {micro} × accumulation "
            f"{steps} × {ranks} ranks"
        )
    return micro, steps


COLUMNS = ("field", "what it does", "needs", "default")
# section.field; what it changes; what must be there; DeepSpeed's own value
OFFLOAD = (
    (
        "offload_optimizer.device",
        "the optimizer's states and its update move to the CPU, or the states to an SSD",
        "cpu: stage 1, 2 or 3; nvme: stage 3",
        "none",
    ),
    (
        "offload_optimizer.nvme_path",
        "the folder of the swap files",
        "device nvme; a fast local SSD",
        "",
    ),
    (
        "offload_optimizer.pin_memory",
        "copies go to page-locked memory, so they can run beside the computation",
        "a GPU, and RAM that the system cannot use for anything else",
        "true",
    ),
    (
        "offload_optimizer.ratio",
        "the share of the optimizer's update that runs on the CPU; the rest on the GPU",
        "stage 3, device cpu",
        "1.0",
    ),
    (
        "offload_optimizer.buffer_count",
        "the number of buffers in RAM for states on their way from and to the SSD",
        "device nvme; at least the optimizer's tensors per parameter (AdamW: 4)",
        "4",
    ),
    (
        "offload_param.device",
        "parameters wait on the CPU or on an SSD until a layer gathers them",
        "stage 3",
        "none",
    ),
    (
        "offload_param.buffer_count",
        "the number of buffers in RAM for parameters on their way from the SSD",
        "device nvme",
        "5",
    ),
    (
        "offload_param.buffer_size",
        "the size of one such buffer, in parameters; the largest parameter must fit",
        "device nvme",
        "1e8",
    ),
    (
        "offload_param.max_in_cpu",
        "the number of parameters that stay in RAM, so that they need not be read again",
        "device nvme",
        "1e9",
    ),
    (
        "aio.block_size",
        "bytes of one read or write of the SSD",
        "device nvme; the library libaio",
        "1048576",
    ),
    (
        "aio.queue_depth",
        "reads and writes that wait for the SSD at one time",
        "device nvme",
        "8",
    ),
    (
        "zero_force_ds_cpu_optimizer",
        "offloading insists on DeepSpeed's own CPU Adam, which it compiles; false allows any",
        "a C++ compiler, if true",
        "true",
    ),
)


def offload_rows() -> list[dict[str, str]]:
    """The table of OFFLOAD: one row per field."""
    return [dict(zip(COLUMNS, row, strict=True)) for row in OFFLOAD]

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


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of the configuration.

    Attributes:
        section, name: where it is.
        does: what it changes.
        needs: what must be there; "" for nothing.
        default: DeepSpeed's own.
    """

    section: str
    name: str
    does: str
    needs: str = ""
    default: str = ""


OFFLOAD = (
    Field(
        section="offload_optimizer",
        name="device",
        does="the optimizer's states and its update move to the CPU, or the states to an SSD",
        needs="cpu: stage 1, 2 or 3; nvme: stage 3",
        default="none",
    ),
    Field(
        section="offload_optimizer",
        name="nvme_path",
        does="the folder of the swap files",
        needs="device nvme; a fast local SSD",
    ),
    Field(
        section="offload_optimizer",
        name="pin_memory",
        does="copies go to page-locked memory, so they can run beside the computation",
        needs="a GPU, and RAM that the system cannot use for anything else",
        default="true",
    ),
    Field(
        section="offload_optimizer",
        name="ratio",
        does="the share of the optimizer's update that runs on the CPU; the rest on the GPU",
        needs="stage 3, device cpu",
        default="1.0",
    ),
    Field(
        section="offload_optimizer",
        name="buffer_count",
        does="the number of buffers in RAM for states on their way from and to the SSD",
        needs="device nvme; at least the optimizer's tensors per parameter (AdamW: 4)",
        default="4",
    ),
    Field(
        section="offload_param",
        name="device",
        does="parameters wait on the CPU or on an SSD until a layer gathers them",
        needs="stage 3",
        default="none",
    ),
    Field(
        section="offload_param",
        name="buffer_count",
        does="the number of buffers in RAM for parameters on their way from the SSD",
        needs="device nvme",
        default="5",
    ),
    Field(
        section="offload_param",
        name="buffer_size",
        does="the size of one such buffer, in parameters; the largest parameter must fit",
        needs="device nvme",
        default="1e8",
    ),
    Field(
        section="offload_param",
        name="max_in_cpu",
        does="the number of parameters that stay in RAM, so that they need not be read again",
        needs="device nvme",
        default="1e9",
    ),
    Field(
        section="aio",
        name="block_size",
        does="bytes of one read or write of the SSD",
        needs="device nvme; the library libaio",
        default="1048576",
    ),
    Field(
        section="aio",
        name="queue_depth",
        does="reads and writes that wait for the SSD at one time",
        needs="device nvme",
        default="8",
    ),
    Field(
        section="(top)",
        name="zero_force_ds_cpu_optimizer",
        does="offloading insists on DeepSpeed's own CPU Adam, which it compiles; false allows any",
        needs="a C++ compiler, if true",
        default="true",
    ),
)


def offload_rows() -> list[dict[str, str]]:
    """The table of OFFLOAD: one row per field."""
    return [
        {
            "field": f"{field.section}.{field.name}" if field.section != "(top)" else field.name,
            "what it does": field.does,
            "needs": field.needs,
            "default": field.default,
        }
        for field in OFFLOAD
    ]

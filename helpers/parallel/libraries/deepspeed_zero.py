"""DeepSpeed's own ZeRO, stages 0 to 3, as a Strategy: from its JSON settings."""

import copy
from collections.abc import Mapping

import torch

from helpers.models.initialization import build
from helpers.parallel.libraries.deepspeed_extension import deepspeed
from helpers.parallel.libraries.deepspeed_state import DeepSpeedState
from helpers.parallel.libraries.strategy import Loss, expect
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import by_device
from helpers.plans.deepspeed_config import read

BUCKET = 50_000  # numbers: DeepSpeed's default, 5e8, is for GPUs
BOUND = 0.5  # in bf16, 8 steps of AdamW on a small model: measured 0.35


class DeepSpeedZero(DeepSpeedState):
    """The plain model under `deepspeed.initialize`.

    `scale_wrt_gas=False` stops DeepSpeed's own division by the number of micro-batches.

    DeepSpeed trains in float32 or below: stages 0 and 3 refuse float64, and stages 1 and 2 keep
    master copies in float32. With "bf16" in the settings the strategy is lossy.

    Args:
        config, seed, mesh, device, optimizer, micro_batches: as for Trainer; the mesh has one axis,
            "dp".
        dtype: float32.
        settings: DeepSpeed's JSON as a dict. `completed` fills in what it leaves out. Without an
            "optimizer", the `optimizer` above is used.
        stage: for settings without one; default 1.

    Raises:
        ValueError: another dtype; or the settings contradict an argument.
        RuntimeError: DeepSpeed is not ready: see `deepspeed_extension`.
    """

    def make(self, config, seed, dtype, *, settings: Mapping | None = None, stage: int = 1):
        if dtype != torch.float32:
            raise ValueError(
                f"DeepSpeed cannot train in {dtype}: it refuses float64 or keeps float32 masters, "
                "and its settings choose 16 bits. Use dtype=torch.float32"
            )
        self.settings = completed(settings or {}, self.rule, self.micro_batches, stage)
        reading = read(self.settings, self.data_size)
        self.stage = reading.stage
        if reading.sixteen_bit:
            self.lossy, self.bound = "DeepSpeed computes in 16 bits, also the first values", BOUND
        self.library = deepspeed(self.device)
        self.model = build(config, seed, dtype, self.device)
        self.parameters = dict(self.model.named_parameters())
        plain = self.rule.make(self.trained(), self.whole_parts())
        self.engine = self.initialize(Loss(self.model), plain)
        if self.engine.zero_optimization_stage() != self.stage:
            raise ValueError(
                f"DeepSpeed runs stage {self.engine.zero_optimization_stage()}, not {self.stage}"
            )
        self.clipped = {}
        self.watch = self.optimizer.register_step_pre_hook(self.keep)

    def initialize(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer):
        """Wrap the module: returns DeepSpeed's engine, which has its optimizer inside."""
        own = "optimizer" in self.settings
        engine, *_ = self.library.initialize(
            model=module,
            optimizer=None if own else optimizer,
            model_parameters=groups_of(optimizer) if own else None,
            config=copy.deepcopy(self.settings),
        )
        return expect(engine, self.library.DeepSpeedEngine, "deepspeed.initialize")

    def keep(self, optimizer, *_):
        """Copy this rank's clipped gradients: DeepSpeed frees them in the same call.

        `full_gradients` needs them. `held` does not count them.
        """
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.clipped[id(p)] = p.grad.detach().clone()

    def begin(self):
        """Forget the clipped gradients. DeepSpeed clears its own buffers itself."""
        self.clipped = {}

    def loss(self, micro):
        return self.engine(micro)

    def backward(self, loss: torch.Tensor):
        """Run a micro-batch's backward. DeepSpeed counts them, and updates after the last."""
        self.engine.backward(loss, scale_wrt_gas=False)
        if self.stage == 0:  # DeepSpeed does not report its norm
            own = [p.grad for p in self.parameters.values() if p.grad is not None]
            self.unclipped = torch.nn.utils.get_total_norm(own)
        self.engine.step()

    def norm(self):
        if self.stage == 0:
            return self.unclipped
        return torch.as_tensor(self.engine.get_global_grad_norm(), device=self.device)

    def apply(self):
        """Do nothing: the last backward has updated the parameters."""

    def held(self):
        parameters = list(self.parameters.values())
        if self.stage == 3:
            parameters = [p.ds_tensor for p in parameters]
        kinds = {
            "parameters": parameters,
            "master copies": self.flats if self.stage else [],
            "gradients": [p.grad for p in self.parameters.values()]
            + [getattr(self.engine.optimizer, "grad_partitions_flat_buffer", None)],
            "optimizer": list(self.optimizer.state.values()),
        }
        return by_device(kinds)

    def close(self):
        self.watch.remove()
        self.clipped = {}
        self.engine.destroy()


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict]:
    """The groups of parameters for an optimizer that DeepSpeed makes: which of them decay."""
    return [{k: g[k] for k in ("params", "weight_decay")} for g in optimizer.param_groups]


def completed(settings: Mapping, rule: OptimizerConfig, micro_batches: int, stage: int) -> dict:
    """Fill in what DeepSpeed's settings leave out, for a training beside its twin.

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

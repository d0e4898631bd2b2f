"""DeepSpeed's own ZeRO, stages 0 to 3, as a Strategy: from its JSON settings.

DeepSpeed flattens the parameters of each group into one tensor, and cuts that into one shard for
each rank. Its functions `safe_get_full_…` gather a parameter's own piece, by the plain shape.
"""

import contextlib
import copy
from collections.abc import Mapping

import torch

from helpers.comm.mesh import Mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.parallel.libraries.deepspeed_extension import deepspeed
from helpers.parallel.libraries.deepspeed_settings import completed
from helpers.parallel.libraries.loss import Loss, global_loss
from helpers.parallel.libraries.wrapped import expect
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.owners.local import by_device
from helpers.parallel.strategy import Step, Strategy
from helpers.parallel.sums import GlobalSum
from helpers.plans.deepspeed_config import read
from helpers.state.first_values import first_values
from helpers.state.placing import whole

CLIPPED = "clipped gradient"  # a slot beside the optimizer's own, while full_gradients gathers it
BOUND = 0.5  # in bf16, 8 steps of AdamW on a small model: measured 0.35


class DeepSpeedZero(Strategy):
    """The plain model under `deepspeed.initialize`.

    DeepSpeed averages gradients over ranks, but a Strategy needs the gradient of the global mean
    over targets. So each rank multiplies its summed loss by N and divides it by the targets of all
    ranks; `scale_wrt_gas=False` stops DeepSpeed's own division by the number of micro-batches.

    DeepSpeed trains in float32 or below: its reductions refuse float64, and stages 1 to 3 keep
    master copies in float32. With "bf16" in the settings the strategy is lossy.

    Args:
        config, seed, mesh, device, optimizer, micro_batches: as for Trainer; the mesh has one axis,
            "dp".
        dtype: float32.
        settings: DeepSpeed's JSON as a dict. `completed` fills in what it leaves out. Without an
            "optimizer", the `optimizer` above is used.
        stage: for settings without one; default 1.

    Raises:
        ValueError: the mesh has other axes; another dtype; or the settings contradict an argument.
        RuntimeError: DeepSpeed is not ready: see `deepspeed_extension`.
    """

    def __init__(
        self,
        config,
        seed: int,
        mesh: Mesh,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        optimizer: OptimizerConfig | None = None,
        micro_batches: int = 1,
        settings: Mapping | None = None,
        stage: int = 1,
    ):
        if mesh.layout.axes != ("dp",):
            raise ValueError(f"make the mesh with the axis dp only, not {mesh.layout!r}")
        if dtype != torch.float32:
            raise ValueError(
                f"DeepSpeed cannot train in {dtype}: its reductions refuse float64, and its "
                "settings choose 16 bits. Use dtype=torch.float32"
            )
        self.rule, self.micro_batches = optimizer or OptimizerConfig(), micro_batches
        self.world_size = self.data_size = mesh.layout.world_size
        self.data_rank, self.device = mesh.index("dp"), torch.device(device)
        self.group = GroupTransport(mesh.group("dp"))
        self.settings = completed(settings or {}, self.rule, micro_batches, stage)
        reading = read(self.settings, self.data_size)
        self.stage = reading.stage
        if reading.sixteen_bit:
            self.lossy, self.bound = "DeepSpeed computes in 16 bits, also the first values", BOUND
        self.library = deepspeed(device)
        self.model = config.build(dtype, device, seed=seed)
        self.parameters = dict(self.model.named_parameters())
        parts = {name: whole(mesh, name, p.shape) for name, p in self.parameters.items()}
        make = lambda name, shape: config.first_value(name, shape, seed)  # noqa: E731
        with torch.no_grad():
            first_values(parts, self.parameters, make)
        trained = {name: p for name, p in self.parameters.items() if p.requires_grad}
        plain = self.rule.make(trained, parts)
        self.engine = self.initialize(Loss(self.model), plain)
        if self.engine.zero_optimization_stage() != self.stage:
            raise ValueError(
                f"DeepSpeed runs stage {self.engine.zero_optimization_stage()}, not {self.stage}"
            )
        self.clipped: dict[int, torch.Tensor] = {}
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

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """PyTorch's optimizer, inside DeepSpeed's for the stages 1 to 3."""
        outer = self.engine.optimizer
        return outer if self.stage == 0 else outer.optimizer

    @property
    def flats(self) -> list[torch.Tensor]:
        """The tensors that the optimizer updates: this rank's shards, or in stage 0 everything."""
        if self.stage == 3:
            return list(self.engine.optimizer.fp32_partitioned_groups_flat)
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def keep(self, optimizer, *_):
        """Copy this rank's clipped gradients: DeepSpeed frees them in the same call.

        `full_gradients` needs them. `held` does not count them.
        """
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.clipped[id(p)] = p.grad.detach().clone()

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        tokens = GlobalSum([self.group], self.device, batch.counted()).send().wait()
        loss, self.clipped = GlobalSum([self.group], self.device), {}
        set_lr(self.engine.optimizer, self.rule.lr if lr is None else lr)
        for micro in batch.to(self.device).micro(self.micro_batches):
            total, _ = self.engine(micro)
            loss.add(total.detach())
            weight = (self.data_size / tokens.clamp(min=1)).to(total.dtype)
            self.backward(total * weight)
        mean = loss.send().wait() / tokens.clamp(min=1)
        return Step(loss=mean, grad_norm=self.norm(), tokens=int(tokens))

    def backward(self, loss: torch.Tensor):
        """Run a micro-batch's backward. DeepSpeed counts them, and updates after the last."""
        self.engine.backward(loss, scale_wrt_gas=False)
        if self.stage == 0:  # DeepSpeed does not report its norm
            own = [p.grad for p in self.parameters.values() if p.grad is not None]
            self.unclipped = torch.nn.utils.get_total_norm(own)
        self.engine.step()

    def norm(self) -> torch.Tensor:
        """The norm of all gradients of the last step, before clipping."""
        if self.stage == 0:
            return self.unclipped
        return torch.as_tensor(self.engine.get_global_grad_norm(), device=self.device)

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        return global_loss(self.engine, self.engine, batch.to(self.device), self.group)

    def full_gradients(self):
        trained = self.trained()
        if self.stage == 0:
            return {
                n: self.clipped[id(p)].clone() for n, p in trained.items() if id(p) in self.clipped
            }
        for flat in self.flats:
            self.optimizer.state[flat][CLIPPED] = self.clipped[id(flat)]
        self.link()
        full = {name: self.slot(p, CLIPPED) for name, p in trained.items()}
        for flat in self.flats:
            del self.optimizer.state[flat][CLIPPED]
        self.link()
        return full

    def full_state(self):
        trained = self.trained()
        with torch.no_grad():
            model = {name: self.value(p) for name, p in self.parameters.items()}
        kept = [slots for slots in self.optimizer.state.values() if slots]
        if not kept:
            return {"model": model, "optimizer": {}}
        if self.stage == 0:
            every = {name: self.optimizer.state[p] for name, p in trained.items()}
            slots = {
                name: {key: torch.as_tensor(value).clone() for key, value in own.items()}
                for name, own in every.items()
                if own
            }
            return {"model": model, "optimizer": slots}
        self.link()
        first = kept[0]
        slots = {
            name: {
                key: self.slot(p, key) if is_slot(value) else torch.as_tensor(value).clone()
                for key, value in first.items()
            }
            for name, p in trained.items()
        }
        return {"model": model, "optimizer": slots}

    @torch.no_grad()
    def load(self, state: Mapping):
        self.clipped = {}
        for name, p in self.parameters.items():
            self.write(p, state["model"][name])
        self.optimizer.state.clear()
        saved = {n: state["optimizer"][n] for n in self.trained() if state["optimizer"].get(n)}
        if not saved:
            return
        if self.stage == 0:
            for name, slots in saved.items():
                self.optimizer.state[self.parameters[name]] = {
                    key: torch.as_tensor(value).clone() for key, value in slots.items()
                }
            return
        for flat in self.flats:  # DeepSpeed would create the state in its first update
            self.optimizer.state[flat] = {
                key: torch.zeros_like(flat) if is_slot(value) else torch.as_tensor(value).clone()
                for key, value in next(iter(saved.values())).items()
            }
        self.link()
        for name, slots in saved.items():
            for key, value in slots.items():
                if is_slot(value):
                    self.write(self.parameters[name], value, key)

    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    def value(self, p: torch.nn.Parameter) -> torch.Tensor:
        """A parameter, whole: its master copy if there is one."""
        if self.stage and p.requires_grad:
            return self.library.utils.safe_get_full_fp32_param(p).clone()
        with self.gathered(p):
            return p.detach().clone()

    def slot(self, p: torch.nn.Parameter, key: str) -> torch.Tensor:
        """One of the optimizer's tensors for a parameter, whole."""
        return self.library.utils.safe_get_full_optimizer_state(p, key).clone()

    def write(self, p: torch.nn.Parameter, value: torch.Tensor, key: str | None = None):
        """Write a parameter and its master copy, or with a key one of the optimizer's tensors."""
        value, utils = value.to(self.device, torch.float32), self.library.utils
        if key is None:
            with self.gathered(p, write=True):
                p.copy_(value)
        if not self.stage or not p.requires_grad:
            return
        if self.stage == 3:
            own = shard_of(value, p.ds_tensor.numel(), self.data_rank)
            if key is None:
                utils.safe_set_local_fp32_param(p, own)
            else:
                utils.safe_set_local_optimizer_state(p, own, key)
        elif key is None:
            utils.safe_set_full_fp32_param(p, value)
        else:
            utils.safe_set_full_optimizer_state(p, value, key)

    def gathered(self, p: torch.nn.Parameter, write: bool = False):
        """A context in which a parameter of stage 3 is whole; rank 0's changes are kept."""
        if self.stage < 3:
            return contextlib.nullcontext()
        return self.library.zero.GatheredParameters([p], modifier_rank=0 if write else None)

    def link(self):
        """Show DeepSpeed the optimizer's present tensors.

        By itself it looks once: in its first update, after the first group of parameters.
        """
        if self.stage in (1, 2):
            outer = self.engine.optimizer
            for params, flat in zip(outer.bit16_groups, self.flats, strict=True):
                self.library.utils.lazy_init_hp_params_optimizer_state(
                    params, flat, self.optimizer.state
                )

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


def shard_of(value: torch.Tensor, size: int, rank: int) -> torch.Tensor:
    """This rank's piece of a flattened tensor, padded with zeros."""
    flat = value.flatten()
    padded = torch.zeros(size * (rank + 1), dtype=flat.dtype, device=flat.device)
    there = min(flat.numel(), padded.numel())
    padded[:there] = flat[:there]
    return padded[size * rank :]


def is_slot(value) -> bool:
    """Whether an optimizer's value has the parameter's shape; the step count does not."""
    return isinstance(value, torch.Tensor) and value.ndim > 0

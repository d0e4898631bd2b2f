"""PyTorch's DTensor as a Strategy: `parallelize_module` on the plain GPT, the oracle for ours.

Source: PyTorch's tutorial "Large Scale Transformer model training with Tensor Parallel".
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from helpers.comm.mesh import Mesh
from helpers.data.batch import Batch
from helpers.models.gpt import build
from helpers.parallel.libraries.fully_shard import for_dtensors
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.strategy import Step, Strategy
from helpers.parallel.tensor.placement import check_mixers
from helpers.state.placing import whole


class DTensorParallel(Strategy):
    """The plain GPT under DTensor's tensor parallelism, and sequence parallelism if asked.

    All ranks see the same batch. DTensor gathers and sums where the placements ask for it, and
    `loss_parallel` keeps the logits cut by vocabulary.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer; the mesh has
            one axis, "tp".
        sequence: cut the activations between the layers by tokens.

    Raises:
        ValueError: the mesh has other axes, or the config has a mixer other than attention or no
            MLPs; or learned positions, with `sequence`.
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
        sequence: bool = False,
    ):
        if mesh.layout.axes != ("tp",):
            raise ValueError(
                f"DTensorParallel needs a mesh with the axis tp alone, not {mesh.layout!r}"
            )
        check_mixers(config, known=("attention",))
        if config.mlp == "none":
            raise ValueError("DTensorParallel's plan cuts MLPs; the config has mlp='none'")
        if sequence and config.positions == "learned":
            raise ValueError(
                "DTensorParallel adds learned positions to whole sequences: use rotary positions, "
                "or sequence=False"
            )
        self.rule, self.micro_batches = optimizer or OptimizerConfig(), micro_batches
        self.world_size, self.device = mesh.layout.world_size, torch.device(device)
        self.mesh = mesh.device_mesh
        self.model = build(config, seed, dtype, device)
        parallelize_module(self.model, self.mesh, plan_of(config, sequence))
        self.model.tie()
        if sequence:
            self.model.locate = ShardedPlaces(self.model.locate, mesh.index("tp"), self.world_size)
        self.parameters = dict(self.model.named_parameters())
        parts = {name: whole(mesh, name, p.shape) for name, p in self.parameters.items()}
        # PyTorch's fused calls take DTensors or plain tensors: a replicated norm is plain
        cut, whole_ones = split(self.parameters)
        rule = for_dtensors(self.rule)
        self.optimizer = rule.make(cut, parts)
        for group in rule.make(whole_ones, parts).param_groups if whole_ones else ():
            self.optimizer.add_param_group(group)

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        self.optimizer.zero_grad()
        tokens, total = max(batch.counted(), 1), 0.0
        for micro in batch.to(self.device).micro(self.micro_batches):
            with loss_parallel():
                loss, _ = self.model.loss(micro)
                (loss / tokens).backward()
            total += plain(loss.detach()).double()
        norm = self.clip()
        set_lr(self.optimizer, self.rule.lr if lr is None else lr)
        self.optimizer.step()
        return Step(loss=total / tokens, grad_norm=norm, tokens=batch.counted())

    def clip(self) -> torch.Tensor:
        """Clip all gradients by their global norm, and return the norm before."""
        kinds = [list(kind.values()) for kind in split(self.parameters) if kind]
        norms = [plain(get_total_norm([p.grad for p in kind])) for kind in kinds]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        if self.rule.clip is not None:
            for kind in kinds:
                clip_grads_with_norm_(kind, self.rule.clip, norm)
        return norm

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        self.model.eval()
        try:
            with loss_parallel():
                loss, count = self.model.loss(batch.to(self.device))
        finally:
            self.model.train()
        return float(plain(loss)), int(count)

    def full_gradients(self):
        return {n: plain(p.grad).clone() for n, p in self.parameters.items() if p.grad is not None}

    def full_state(self):
        state = self.optimizer.state
        return {
            "model": {name: plain(p.detach()).clone() for name, p in self.parameters.items()},
            "optimizer": {
                name: {slot: plain(value).clone() for slot, value in state[p].items()}
                for name, p in self.parameters.items()
                if state[p]
            },
        }

    @torch.no_grad()
    def load(self, state: Mapping):
        self.optimizer.state.clear()
        for name, p in self.parameters.items():
            p.copy_(like(state["model"][name].to(p.dtype), p))
            slots = state["optimizer"].get(name, {})
            if slots:
                self.optimizer.state[p] = {slot: like(value, p) for slot, value in slots.items()}


def plan_of(config, sequence: bool) -> dict:
    """The style of each module: what `parallelize_module` takes."""
    between = Shard(1) if sequence else Replicate()
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if sequence:
        plan["norm"] = SequenceParallel()
    for number in range(config.layers):
        at = f"blocks.{number}."
        for name in ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up"):
            if not name.endswith("gate") or config.mlp == "swiglu":
                plan[at + name] = ColwiseParallel()
        for name in ("attention.out", "mlp.down"):
            plan[at + name] = RowwiseParallel(output_layouts=between)
        if sequence:
            plan[at + "attention_norm"] = plan[at + "mlp_norm"] = SequenceParallel()
        # one message for all projections of an input, instead of one for each
        plan[at + "attention"] = PrepareModuleInput(
            input_layouts=(between, None, None), desired_input_layouts=(Replicate(), None, None)
        )
        plan[at + "mlp"] = PrepareModuleInput(
            input_layouts=(between,), desired_input_layouts=(Replicate(),)
        )
    return plan


class ShardedPlaces:
    """The positions of a batch whose activations are cut by tokens: dropout goes by them."""

    def __init__(self, locate, rank: int, ranks: int):
        self.locate, self.rank, self.ranks = locate, rank, ranks

    def __call__(self, x, *args, **options):
        positions = self.locate(x, *args, **options)
        if positions.key is None:
            return positions
        return replace(positions, key=positions.key.chunk(self.ranks, 1)[self.rank])


def split(parameters: Mapping[str, torch.Tensor]) -> tuple[dict, dict]:
    """DTensors, and plain tensors, by name."""
    cut = {name: p for name, p in parameters.items() if isinstance(p, DTensor)}
    return cut, {name: p for name, p in parameters.items() if name not in cut}


def plain(value: torch.Tensor) -> torch.Tensor:
    """The whole tensor of a DTensor; every rank calls it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A whole tensor, placed as the parameter is, if it has its shape."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value.clone()
    # a copy: where all ranks hold all of it, the result would share its memory
    return distribute_tensor(value.clone(), parameter.device_mesh, parameter.placements)

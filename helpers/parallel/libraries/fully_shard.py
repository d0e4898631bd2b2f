"""PyTorch's FSDP2, `fully_shard`, as a Strategy: the oracle for our ZeRO stage 3.

Source: PyTorch's documentation of `torch.distributed.fsdp.fully_shard`, and its tutorial "Getting
Started with Fully Sharded Data Parallel (FSDP2)".
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from helpers.comm.mesh import Mesh
from helpers.parallel.libraries.strategy import Library, local
from helpers.parallel.libraries.wrapping import Policy, each_block
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import BOUNDS
from helpers.parallel.world import World
from helpers.state.full_state import is_local
from helpers.state.part import Part
from helpers.state.placing import cut, whole
from helpers.state.slicing import first_values, load, load_optimizer
from helpers.state.storage import even

AXES = {("dp",): "dp", ("replicate", "shard"): "shard"}  # a mesh's axes -> the axis that shards


class FullyShard(Library):
    """The plain model, with `fully_shard` on each unit and on the model.

    The model is built on the device "meta", where tensors have no memory. After the sharding, each
    rank allocates its shards only. It fills them with the first values, one whole tensor at a time.
    So no rank ever holds the whole model.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer. The mesh has
            the axis "dp"; or, for hybrid sharding, the axes "replicate" and "shard": the model is
            sharded within each group along "shard", and each group holds the whole model once.
        wrap: the policy that chooses the units, as in `wrapping`.
        prefetch: gather this many units ahead, in forward and backward, by
            `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`. 0 leaves the
            order to FSDP: on a GPU its own stream lets a gather overlap with the unit before.
        sync_each: reduce the gradients after each micro-batch. Each rank then holds a shard of the
            sum. By default (False) only the last micro-batch communicates gradients, and each rank
            holds the whole sum until then: what FSDP1 calls `no_sync`.
        options: of `fully_shard`: `reshard_after_forward`, `mp_policy`, `offload_policy`, …

    Attributes:
        units: the modules that became units, in the order of their forward, the root first.

    Raises:
        ValueError: pinned memory is asked for, but there is no GPU; or a parameter was not sharded.
    """

    meshes = tuple(AXES)

    def make(
        self,
        config,
        seed,
        dtype,
        *,
        wrap: Policy = each_block,
        prefetch: int = 0,
        sync_each: bool = False,
        **options,
    ):
        self.sync_each = sync_each
        offload = isinstance(options.get("offload_policy"), CPUOffloadPolicy)
        if offload and options["offload_policy"].pin_memory and not torch.cuda.is_available():
            raise ValueError(
                "pinned memory needs a GPU, and there is none here: use "
                "CPUOffloadPolicy(pin_memory=False)"
            )
        self.lossy, self.bound = rounding(options.get("mp_policy"), dtype)
        self.model = config.build(dtype, "meta", seed=seed)
        shapes = {name: p.shape for name, p in self.model.named_parameters()}
        self.units = shard(self.model, wrap, self.mesh.device_mesh, options)
        self.model.to_empty(device="cpu" if offload else self.device)
        if offload:
            move_buffers(self.model, self.device)
        fetch_ahead(self.units, prefetch)
        self.parameters = dict(self.model.named_parameters())
        parts = {name: part_of(self.mesh, name, shape) for name, shape in shapes.items()}
        self.world = World(parts, self.mesh)
        make = lambda name, shape: config.first_value(name, shape, seed)  # noqa: E731
        with torch.no_grad():
            first_values(parts, self.local(), make)
        trained = {name: p for name, p in self.parameters.items() if p.requires_grad}
        self.optimizer = for_dtensors(self.rule).make(trained, parts)

    def turn(self, last):
        self.model.set_requires_gradient_sync(self.sync_each or last)
        return nullcontext()

    def local(self) -> dict[str, torch.Tensor]:
        """This rank's shards of the parameters, by plain name; they share memory."""
        return {name: local(p.detach()) for name, p in self.parameters.items()}

    def kept(self) -> dict[str, dict[str, object]]:
        """This rank's shards of the optimizer's state, by plain name and slot."""
        state = self.optimizer.state
        return {
            name: {slot: local(value) for slot, value in state[p].items()}
            for name, p in self.parameters.items()
            if p in state
        }

    def full_gradients(self):
        with_grad = {n: p.grad for n, p in self.parameters.items() if p.grad is not None}
        return self.world.full_gradients({name: local(g) for name, g in with_grad.items()})

    def full_state(self):
        return self.world.full_state(self.local(), self.kept())

    @torch.no_grad()
    def put(self, state: Mapping):
        load(self.world.own, self.local(), state["model"])
        self.take(load_optimizer(self.world.own, state["optimizer"]))

    def stored(self):
        return self.world.parts, self.local(), self.kept()

    def resume(self, tensors, moments, scale):
        self.take(moments)

    def take(self, kept: Mapping[str, Mapping[str, object]]):
        """Use this rank's shards of optimizer state, by plain name and slot."""
        self.optimizer.state.clear()
        for name, slots in kept.items():
            p, part = self.parameters[name], self.world.own[name]
            self.optimizer.state[p] = {s: placed(s, value, p, part) for s, value in slots.items()}


def shard(model, wrap: Policy, mesh, options) -> list[FSDPModule]:
    """Call `fully_shard` on each unit, and then on the model; return the units, the root first.

    Raises:
        ValueError: a parameter was not sharded, for example one of `ignored_params`.
    """
    chosen = [unit if isinstance(unit, list) else [unit] for unit in wrap(model)]
    for modules in chosen:
        fully_shard(modules if len(modules) > 1 else modules[0], mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise ValueError(f"{name} is a {type(parameter).__name__}: it was not sharded")
    first = {id(modules[0]) for modules in chosen}
    order = [module for module in model.modules() if id(module) in first]
    return [model, *order]


def fetch_ahead(units: list[FSDPModule], ahead: int):
    """Let each unit start the gathers of the next units of its pass."""
    if ahead:
        for at, unit in enumerate(units):
            unit.set_modules_to_forward_prefetch(units[at + 1 : at + 1 + ahead])
            unit.set_modules_to_backward_prefetch(units[max(at - ahead, 1) : at][::-1])


def part_of(mesh: Mesh, name: str, shape) -> Part:
    """Describe a parameter's shard: FSDP2 cuts the first dim in even pieces, as DTensor does."""
    axis = AXES[mesh.layout.axes]
    ranks = mesh.layout.group_of(mesh.rank, axis)
    where = [even(mesh.layout, rank, (axis,), shape[0]) for rank in ranks]
    return cut(mesh, whole(mesh, name, shape), 0, axis, where)


def for_dtensors(rule: OptimizerConfig) -> OptimizerConfig:
    """The same rule, for parameters that are DTensors: PyTorch has no fused SGD for them."""
    if rule.rule != "sgd":
        return rule
    return replace(rule, rule=partial(torch.optim.SGD, momentum=rule.momentum))


def rounding(policy, dtype: torch.dtype) -> tuple[str, float]:
    """Say why a mixed-precision policy is lossy, and its bound; ("", 0.0) if it is exact."""
    used = {getattr(policy, "param_dtype", None), getattr(policy, "reduce_dtype", None)} - {None}
    low = [kind for kind in used if torch.finfo(kind).bits < torch.finfo(dtype).bits]
    if not low:
        return "", 0.0
    names = ", ".join(sorted(str(kind) for kind in low))
    return f"it computes or sums in {names}", max(BOUNDS.get(kind, 0.5) for kind in low)


def move_buffers(model: torch.nn.Module, device: torch.device):
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def placed(slot: str, value, parameter: DTensor, part: Part):
    """Make a DTensor of a moment, placed as its parameter is; a count stays as it is."""
    if not isinstance(value, torch.Tensor) or not is_local(slot, value, part):
        return value
    own = local(parameter.detach())
    return DTensor.from_local(
        value.to(own),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )

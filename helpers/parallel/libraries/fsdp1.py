"""PyTorch's FSDP1, `FullyShardedDataParallel`, as a Strategy: the names in papers and old code.

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
sections 3 and 4; PyTorch's documentation of `torch.distributed.fsdp`. For new code, use FSDP2
(`fully_shard`).
"""

from contextlib import nullcontext
from functools import partial

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from helpers.comm.transport import GroupTransport
from helpers.models.initialization import build
from helpers.parallel.libraries.fully_shard import AXES, rounding
from helpers.parallel.libraries.strategy import Library, Loss
from helpers.parallel.libraries.wrapping import each_block
from helpers.parallel.world import GlobalSum

WHOLE = StateDictOptions(full_state_dict=True)
WRAPPER = "_fsdp_wrapped_module."  # in FSDP1's names of parameters

# FSDP1's name, FSDP2's, and what it does
NAMES = (
    ("FullyShardedDataParallel(module)", "fully_shard(module)",
     "FSDP1 returns a new module around yours; FSDP2 changes yours in place, and names stay plain"),
    ("FlatParameter", "DTensor, Shard(0)",
     "FSDP1 joins a unit's parameters into one flat row; FSDP2 cuts each one along its first dim"),
    ("auto_wrap_policy", "a call for each block",
     "which modules become units; without a policy, the whole model is one unit"),
    ("ShardingStrategy.FULL_SHARD", "reshard_after_forward=True",
     "stage 3: parameters are freed after the forward"),
    ("ShardingStrategy.SHARD_GRAD_OP", "reshard_after_forward=False",
     "parameters stay gathered from the forward to the backward"),
    ("ShardingStrategy.HYBRID_SHARD", "a mesh with two axes",
     "shard within a group, replicate over the groups"),
    ("ShardingStrategy.NO_SHARD", "DistributedDataParallel",
     "every rank holds everything"),
    ("MixedPrecision", "MixedPrecisionPolicy",
     "param_dtype and reduce_dtype; FSDP1 also casts buffers"),
    ("CPUOffload(offload_params=True)", "CPUOffloadPolicy()",
     "shards, gradients and optimizer state stay in CPU memory"),
    ("BackwardPrefetch, forward_prefetch", "set_modules_to_…_prefetch",
     "which gather starts before its unit needs it"),
    ("no_sync()", "set_requires_gradient_sync(False)",
     "add gradients up on the rank, without a message"),
    ("clip_grad_norm_ of the module", "torch.nn.utils.clip_grad_norm_",
     "FSDP1 needs its own, because its gradients are plain shards"),
    ("StateDictType.FULL_STATE_DICT", "StateDictOptions(full_state_dict=True)",
     "gather whole tensors"),
    ("StateDictType.SHARDED_STATE_DICT", "state_dict(), of DTensors",
     "each rank keeps its shards, for torch.distributed.checkpoint"),
    ("StateDictType.LOCAL_STATE_DICT", "none",
     "the flat shards as they are: only the same world can load them"),
    ("sync_module_states, param_init_fn", "build on meta, then to_empty",
     "how the first values get to the ranks"),
)  # fmt: skip


class Fsdp1(Library):
    """The single process's model in `FullyShardedDataParallel`.

    The module has its own `clip_grad_norm_`, but that one computes norms in float32 and refuses
    float64 gradients. So this strategy clips by itself.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer; the mesh as for
            FullyShard, with two axes for the hybrid strategies.
        sharding: a `ShardingStrategy`, or its name.
        layers: the classes whose modules become units, for `transformer_auto_wrap_policy`; None for
            the classes of the model's blocks.
        options: of FullyShardedDataParallel: `mixed_precision`, `cpu_offload`, …

    Raises:
        ValueError: the mesh does not fit the sharding strategy (HYBRID_SHARD needs at least two
            ranks along "shard"), or nothing was wrapped.
    """

    meshes = tuple(AXES)

    def make(
        self,
        config,
        seed,
        dtype,
        *,
        sharding: ShardingStrategy | str = ShardingStrategy.FULL_SHARD,
        layers: set[type[torch.nn.Module]] | None = None,
        **options,
    ):
        self.sharding = ShardingStrategy[sharding] if isinstance(sharding, str) else sharding
        layout, axis = self.mesh.layout, AXES[self.mesh.layout.axes]
        hybrid = self.sharding is ShardingStrategy.HYBRID_SHARD
        if axis != ("shard" if hybrid else "dp"):
            raise ValueError(
                f"{self.sharding.name} needs a mesh with the axes "
                f"{'replicate and shard' if hybrid else 'dp only'}, not {layout!r}"
            )
        if hybrid and layout.size(axis) == 1 < layout.world_size:
            raise ValueError(
                "HYBRID_SHARD with one rank along shard would train without summing gradients: "
                "FSDP1 takes it for NO_SHARD within that rank. Use NO_SHARD with the axis dp"
            )
        whole_here = self.sharding is ShardingStrategy.NO_SHARD
        self.shards = [] if whole_here else [self.mesh.group(axis)]
        self.lossy, self.bound = rounding(options.get("mixed_precision"), dtype)
        plain = build(config, seed, dtype, self.device)
        self.parameters = dict(plain.named_parameters())
        parts = self.whole_parts()
        layers = layers or {type(block) for block in each_block(plain)}
        self.model = FullyShardedDataParallel(
            Loss(plain),
            device_mesh=self.mesh.device_mesh,
            sharding_strategy=self.sharding,
            auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls=layers),
            use_orig_params=True,
            device_id=self.device,
            **options,
        )
        self.units = FullyShardedDataParallel.fsdp_modules(self.model)
        if len(self.units) < 2:
            raise ValueError("FSDP1 wrapped no block: which classes do the blocks have?")
        self.parameters = {plain_name(name): p for name, p in self.model.named_parameters()}
        self.optimizer = self.rule.make(self.parameters, parts)

    def loss(self, micro):
        return self.model(micro)

    def turn(self, last):
        return nullcontext() if last else self.model.no_sync()

    @torch.no_grad()
    def norm(self) -> torch.Tensor:
        """Clip by the norm of all shards, and return the norm before."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        groups = [GroupTransport(group) for group in self.shards]
        total = GlobalSum(groups, self.device)
        for gradient in gradients:
            total.add(gradient.double().square().sum())
        norm = total.send().wait().sqrt()
        factor = self.rule.factor(norm)
        if factor is not None:
            for gradient in gradients:
                gradient.mul_(factor)
        return norm

    def full_gradients(self):
        with FullyShardedDataParallel.summon_full_params(self.model, with_grads=True):
            return {
                plain_name(name): p.grad.clone()
                for name, p in self.model.named_parameters()
                if p.grad is not None
            }

    def full_state(self):
        model = get_model_state_dict(self.model, options=WHOLE)
        state = {}
        if self.optimizer.state:
            # Before the first step, PyTorch would make the state here by a step, and count it.
            state = get_optimizer_state_dict(self.model, self.optimizer, options=WHOLE)["state"]
        return {
            "model": {name: model[f"model.{name}"].clone() for name in self.parameters},
            "optimizer": {
                name: {slot: value.clone() for slot, value in state[f"model.{name}"].items()}
                for name in self.parameters
                if state.get(f"model.{name}")
            },
        }

    def put(self, state):
        model = {f"model.{name}": tensor for name, tensor in state["model"].items()}
        set_model_state_dict(self.model, model, options=WHOLE)
        if not state["optimizer"]:
            self.optimizer.state.clear()
            return
        kept = get_optimizer_state_dict(self.model, self.optimizer, options=WHOLE)
        kept["state"] = {  # copies: PyTorch keeps what it gets
            f"model.{name}": {slot: value.clone() for slot, value in slots.items()}
            for name, slots in state["optimizer"].items()
        }
        set_optimizer_state_dict(self.model, self.optimizer, kept, options=WHOLE)


def plain_name(name: str) -> str:
    """The parameter's name in the plain model, from FSDP1's name."""
    return name.replace(WRAPPER, "").removeprefix("model.")

"""PyTorch's DTensor as a Strategy: `parallelize_module` on the plain GPT, the oracle for ours.

Source: PyTorch's tutorial "Large Scale Transformer model training with Tensor Parallel".
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from helpers.models.initialization import build
from helpers.parallel.libraries.fully_shard import for_dtensors
from helpers.parallel.libraries.strategy import Library, whole
from helpers.parallel.tensor.placement import check_mixers


class DTensorParallel(Library):
    """The plain GPT under DTensor's tensor parallelism, and sequence parallelism if asked.

    All ranks see the same batch. DTensor gathers and sums where the placements ask for it, and
    `loss_parallel` keeps the logits cut by vocabulary.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer; the mesh has
            one axis, "tp".
        sequence: cut the activations between the layers by tokens.

    Raises:
        ValueError: the config has a mixer other than attention or no MLPs; or learned positions,
            with `sequence`.
    """

    meshes = (("tp",),)
    divides = False

    def make(self, config, seed, dtype, sequence: bool = False):
        check_mixers(config, known=("attention",))
        if config.mlp == "none":
            raise ValueError("DTensorParallel's plan cuts MLPs; the config has mlp='none'")
        if sequence and config.positions == "learned":
            raise ValueError(
                "DTensorParallel adds learned positions to whole sequences: use rotary positions, "
                "or sequence=False"
            )
        self.model = build(config, seed, dtype, self.device)
        parallelize_module(self.model, self.mesh.device_mesh, plan_of(config, sequence))
        self.model.tie()
        if sequence:
            rank, ranks = self.mesh.index("tp"), self.world_size
            self.model.locate = ShardedPlaces(self.model.locate, rank, ranks)
        self.parameters = dict(self.model.named_parameters())
        parts = self.whole_parts()
        # PyTorch's fused calls take DTensors or plain tensors: a replicated norm is plain
        cut, whole_ones = split(self.parameters)
        rule = for_dtensors(self.rule)
        self.optimizer = rule.make(cut, parts)
        for group in rule.make(whole_ones, parts).param_groups if whole_ones else ():
            self.optimizer.add_param_group(group)

    def turn(self, last):
        return loss_parallel()

    def norm(self):
        kinds = [list(kind.values()) for kind in split(self.parameters) if kind]
        norms = [whole(get_total_norm([p.grad for p in kind])) for kind in kinds]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        if self.rule.clip is not None:
            for kind in kinds:
                clip_grads_with_norm_(kind, self.rule.clip, norm)
        return norm


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

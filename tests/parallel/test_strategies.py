"""Every exact strategy equals one process: each seam in turn, with each kind of model.

Loss, norm, gradients, parameters, moments, an evaluation, a load: see `beside`. Tolerance: 1e-12
absolute in float64. All cases of a number of ranks share these ranks. Some run where each group has
one queue, as on NCCL: see `tests.nccl_order`.
"""

from dataclasses import dataclass, fields, replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import CPUOffloadPolicy

from helpers.comm.mesh import Layout
from helpers.comm.transport import DirectTransport, GroupTransport, SharedTransport
from helpers.data.batch import IGNORED
from helpers.models.bamba import bamba
from helpers.models.gpt import Block, GPTConfig
from helpers.models.settings import ExpertSettings, Latent, Mamba2Settings, MambaSettings
from helpers.models.vae import VAEConfig
from helpers.parallel.cut_sequence.collective import gathered_attention, ulysses
from helpers.parallel.cut_sequence.model import context_parallel
from helpers.parallel.ddp.after_backward import BucketedDDP, NaiveDDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.libraries.data_parallel import (
    AccelerateDataParallel,
    TorchDataParallel,
    TorchZeroRedundancy,
)
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.libraries.fsdp1 import Fsdp1
from helpers.parallel.libraries.fully_shard import FullyShard
from helpers.parallel.libraries.wrapping import groups_of
from helpers.parallel.mixture.transform import expert_parallel as over_ranks
from helpers.parallel.offload.host import OnHost
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules import gpipe, naive, one_f_one_b
from helpers.plans.schedules.plain import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v
from helpers.plans.sequence_order import contiguous, striped
from tests.parallel.beside import GPT2, ODD, RULE, Case, frozen, hold, tokens
from tests.parallel.experts import ExpertConfig, expert_parallel
from tests.parallel.sample_owners import ByHand
from tests.pictures import random_pictures

pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage", "ignore::FutureWarning")

# models: 33 tokens, which nothing divides
WIDE = {"vocab": 33, "context": 12, "width": 24, "layers": 2}
CUT = GPTConfig(**WIDE, heads=4)
CUT2 = replace(GPT2, **WIDE, heads=4, tied=True)
GROUPED = GPTConfig(**WIDE, heads=12, kv_heads=4, hidden=50, tied=False, dropout=0.1)
PADDED = GPTConfig(vocab=33, context=8, width=7, layers=2, heads=1, positions="learned")
HYBRID = GPTConfig(
    vocab=33,
    context=8,
    width=12,
    layers=3,
    heads=2,
    mixer=("mamba", "attention", "mamba2"),
    mamba=MambaSettings(state=3),
    mamba2=Mamba2Settings(state=3, head=4, chunk=3),
    rotary_share=1 / 3,
)
PURE = replace(HYBRID, mixer=("mamba", "mamba2", "mamba"), mlp="none", positions="none", bias=True)
HEADS = GPTConfig(
    vocab=33,
    context=12,
    width=24,
    layers=1,
    positions="none",
    mlp="none",
    mixer="mamba2",
    mamba2=Mamba2Settings(state=3, head=8, chunk=5),
)
BAMBA = bamba(
    2, [1], vocab=33, context=12, width=24, hidden=20, heads=6, kv_heads=1, mamba2=HEADS.mamba2
)
CONTEXT = replace(PURE, mixer=("mamba", "mamba2"), layers=2, context=11)
RING = replace(GROUPED, context=11)
LEARNED = replace(GPT2, context=11, recompute="selective")
LATENT = GPTConfig(
    vocab=29,
    context=8,
    width=12,
    layers=2,
    heads=2,
    mixer="latent",
    latent=Latent(kv_rank=5, query_rank=7, nope=3, rope=4, value=5),
    recompute="selective",
)
ROUTED = GPTConfig(
    vocab=33,
    context=8,
    width=12,
    layers=3,
    heads=2,
    dropout=0.1,
    experts=ExpertSettings(
        **{"count": 6, "chosen": 2, "hidden": 5, "shared": 1, "after": 1, "groups": 3, "limit": 2},
        **{"score": "sigmoid", "scale": 1.5, "loss_rate": 0.05, "bias_rate": 0.02, "z_rate": 0.01},
    ),
)
DROPS = replace(
    ROUTED,
    recompute="full",
    experts=ExpertSettings(
        **{"count": 4, "chosen": 1, "normalized": False, "capacity": 1.0, "loss_rate": 0.1}
    ),
)
VAE = VAEConfig(side=4, width=7, layers=2, latent=3)


@dataclass(frozen=True, kw_only=True)
class Frozen(GPTConfig):
    """Some cut matrices, a whole bias and the norms are not trained."""

    def build(self, *args, **options):
        model = super().build(*args, **options)
        for name, parameter in model.named_parameters():
            kept = ("norm", "query", "attention.out", "mlp.up.weight", "embedding")
            parameter.requires_grad_(not any(part in name for part in kept))
        return model


def pictures(k, count, config):
    return random_pictures(k, count, config.side)


def once_without_targets(k, sequences, config):
    batch = tokens(k, sequences, config)
    return replace(batch, targets=torch.full_like(batch.targets, IGNORED)) if k == 1 else batch


def few_targets(k, sequences, config):
    """Some micro-batches have no target."""
    return tokens(k, sequences, config, ignored=0.98)


def packed(k, sequences, config):
    """Sequences with documents of other lengths; some documents are one token."""
    n = config.context
    ways = [[3, n - 4, 1], [n], [1, 1, n - 2], [n // 2, n - n // 2]]
    documents = [ways[(k + row) % 4] for row in range(sequences)]
    return replace(tokens(k, sequences, config), documents=documents)


# seams
EXACT = Mixed(low=torch.float64)  # no rounding, so any difference is an error in bookkeeping
NOT_CLIPPED = OptimizerConfig(rule="sgd", clip=None)
SMALL = {"bucket_cap_mb": 2000 / 2**20, "first_bucket_mb": 500 / 2**20}
BUCKETS = partial(Replicated, **SMALL)
REPLICATED = {
    "naive": partial(Replicated, replica=NaiveDDP),
    "bucketed": partial(Replicated, replica=BucketedDDP),
    "DDP": BUCKETS,
}
KEPT = partial(Zero3, reshard_after_forward=False)
STAGES = {"1": Zero1, "2": Zero2, "3": Zero3, "3, kept": KEPT}
OWNERS = {"pending": None, **REPLICATED, **STAGES}


def some(*names):
    """Owners of several families: what one of a family hears, the others hear too."""
    return [(name, OWNERS[name]) for name in names]


NEXT = {"1": Zero3, "2": Zero1, "3": Zero2}  # loads the state of the other
SCHEDULES = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": partial(interleaved, chunks=2),
    "ZB-H1": zero_bubble_h1,
    "ZB-V": zero_bubble_v,
}
TRANSFORMS = {
    "tensor": tensor_parallel,
    "tensor, plain": partial(tensor_parallel, overlap=False),
    "sequence": sequence_parallel,
    "sequence, inputs kept": partial(sequence_parallel, again=False),
    "sequence, chunks": partial(sequence_parallel, chunks=4),  # of 6 tokens
    "sequence, inputs kept, chunks": partial(sequence_parallel, again=False, chunks=2),
    "sequence, plain": partial(sequence_parallel, overlap=False),
}
TENSOR, SEQUENCE = {"tp": 2}, {"transform": sequence_parallel}


def owned(owner, config=ODD, layout=None, *, transform=None, engine=None, precision=None, **rest):
    seams = {"owner": owner, "transform": transform, "engine": engine, "precision": precision}
    recipe = Recipe(**{name: seam for name, seam in seams.items() if seam is not None})
    return Case(recipe, config, layout, **rest)


def freezing(owner, *patterns, config=GPT2, **rest):
    alone = Recipe(transform=frozen(*patterns))
    return owned(owner, config, transform=frozen(*patterns), alone=alone, **rest)


def cut(transform, config=CUT2, ranks=2, owner=None, **rest):
    layout = rest.pop("layout", {"tp": ranks})
    return owned(owner, config, layout, transform=TRANSFORMS.get(transform, transform), **rest)


def piped(schedule, config=CUT2, owner=None, transform=None, *, ranks=2, deep=None, **rest):
    """`deep`: layers; by default as many as the stages, and one more."""
    stages = ranks * (2 if schedule in ("interleaved", "ZB-V") else 1)
    sizes = {"pp": ranks, **rest.pop("axes", {})}
    seams = {"owner": owner, "transform": transform}
    seams = {name: seam for name, seam in seams.items() if seam is not None}
    recipe = Recipe(layout=Layout(**sizes), schedule=SCHEDULES[schedule], **seams)
    layers = config.layers if isinstance(config.mixer, tuple) else (deep or stages + 1)
    rest = {"micro_batches": 4, **rest}
    return Case(recipe, replace(config, layers=layers), sizes, **rest)


def attending(config, ranks=3, *, owner=Replicated, **rest):
    given = {name: rest.pop(name) for name in ("attention", "order") if name in rest}
    return owned(owner, config, {"cp": ranks}, transform=partial(context_parallel, **given), **rest)


def over_experts(owner, layout, config=ROUTED, **rest):
    given = {name: rest.pop(name) for name in ("inner", "axes", "transport") if name in rest}
    return owned(owner, config, layout, transform=partial(over_ranks, **given), **rest)


def dp_tp(owner, transform, config=CUT2, **rest):
    return cut(transform, config, owner=owner, layout={"dp": 2, "tp": 2}, **rest)


def pp_dp(schedule, owner, config=ODD, **rest):
    return piped(schedule, config, owner, axes={"dp": 2}, **rest)


CASES = {
    # who holds: replicated
    "pending sums, by hand": owned(None, GPT2, engine=ByHand, precision=EXACT, micro_batches=2),
    "naive": owned(partial(Replicated, replica=NaiveDDP), GPT2, micro_batches=3),
    "bucketed": owned(partial(Replicated, replica=BucketedDDP, bucket_cap_mb=0.002), GPT2),
    "buckets": owned(BUCKETS, GPT2, precision=EXACT, micro_batches=2),
    "buckets by hand": owned(BUCKETS, engine=ByHand, sequences=7, layout={"dp": 3}),
    "searching, a rank without data": owned(
        partial(Replicated, find_unused_parameters=True, **SMALL), GPT2, {"dp": 3}, sequences=2),
    "shared memory": Case(partial(DataParallel, transport=SharedTransport, **SMALL), GPT2),
    "another axis, a batch without targets": owned(Replicated, layout={"dp": 2, "tp": 2},
                                                   batches=once_without_targets),
    # who holds: ZeRO
    "2, flying": owned(partial(Zero2, in_flight=9), GPT2, micro_batches=2),  # until the next one
    "3, by hand": owned(Zero3, engine=ByHand, micro_batches=2),
    # the sequences: a rank without data, or uneven parts
    **{f"{s}, odd sizes": owned(STAGES[s], PADDED, {"dp": 3}, micro_batches=2, sequences=n,
                                loads=Recipe(owner=NEXT[s]))
       for s, n in (("1", 2), ("2", 7), ("3", 2))},
    "3, half frozen": freezing(Zero3, "attention", "norm"),
    "3, a frozen block": freezing(Zero3, "blocks.1", "norm", config=ODD),
    "1, frozen embedding": freezing(Zero1, "embedding"),
    "3, frozen embedding": freezing(Zero3, "embedding", config=ODD),
    "2, one trained vector": freezing(Zero2, "weight", "positions"),
    "3, kept, not flying, recomputed": owned(
        partial(KEPT, in_flight=0), replace(GPT2, recompute="full", tied=True), micro_batches=2),
    "3, shared memory": owned(partial(Zero3, transport=SharedTransport), micro_batches=2),
    # the rule
    "not clipped, gloo": owned(partial(Zero3, transport=GroupTransport), GPT2,
                               optimizer=OptimizerConfig(clip=None)),
    "sgd": owned(Zero1, optimizer=OptimizerConfig(rule="sgd", clip=0.1), micro_batches=2),
    "rmsprop": owned(Zero2, optimizer=OptimizerConfig(rule=torch.optim.RMSprop)),
    # the model
    "hybrid, 3": owned(Zero3, HYBRID, micro_batches=2),
    "latent, 3": owned(Zero3, LATENT, micro_batches=2),
    "VAE, 3": owned(Zero3, VAE, {"dp": 3}, sequences=7, batches=pictures, micro_batches=2),
    # tensor and sequence parallel: each transform with a model of its own
    "tensor": cut("tensor", micro_batches=2),
    "tensor, recomputed in part": cut(
        "tensor", replace(CUT, recompute="selective", attention="explicit")),
    "tensor, grouped": cut("tensor", GROUPED),
    "sequence, recomputed": cut("sequence", replace(CUT2, recompute="full")),
    "sequence, inputs kept": cut("sequence, inputs kept", GROUPED),
    "sequence, chunks": cut("sequence, chunks", CUT),
    "sequence, inputs kept, chunks": cut("sequence, inputs kept, chunks",
                                         batches=once_without_targets),
    "sequence, plain": cut("sequence, plain", micro_batches=2),
    "sequence, frozen": cut("sequence", Frozen(**{f.name: getattr(CUT2, f.name)
                                                  for f in fields(CUT2)})),
    **{f"{t}, {n} key heads": cut(t, replace(GROUPED, width=32, heads=8, kv_heads=n), 4)
       for t, n in (("tensor", 1), ("sequence", 2))},
    "sequence, 3 tokens": cut("sequence", replace(CUT, vocab=3), 4),
    "sequence, direct": cut(partial(sequence_parallel, chunks=4, transport=DirectTransport),
                            replace(GROUPED, kv_heads=None), 3, micro_batches=2),
    "mamba2 by heads, groups": cut(
        "sequence", replace(HEADS, bias=True, mamba2=replace(HEADS.mamba2, groups=6)), 3),
    "bamba, tensor": cut("tensor, plain", replace(BAMBA, dropout=0.2, recompute="full"),
                         micro_batches=2),
    # pipelines
    "GPipe of 2": piped("GPipe"),
    "ZB-V of 2, grouped": piped("ZB-V", replace(GROUPED, heads=4, kv_heads=2), deep=6),
    "1F1B of 2, tied": piped("1F1B", CUT, batches=few_targets),
    **{f"{name} of 4": piped(name, ranks=4, deep=n)
       for name, n in (("interleaved", 8), ("ZB-H1", 4), ("ZB-V", 8))},
    "1F1B of 4, few micro-batches": piped("1F1B", CUT, ranks=4, deep=4, micro_batches=3),
    "ZB-V, few sequences": piped("ZB-V", sequences=2),
    "ZB-H1, recomputed": piped("ZB-H1", replace(CUT2, recompute="full")),
    "hybrid, ZB-H1": piped("ZB-H1", replace(HYBRID, dropout=0.2), micro_batches=3),
    # two axes and three
    "bucketed, sequence": dp_tp(partial(Replicated, replica=BucketedDDP), "sequence", sequences=1),
    "DDP, bamba": dp_tp(BUCKETS, "tensor", BAMBA),
    "1, tensor": dp_tp(Zero1, "tensor", CUT, micro_batches=2),
    "2, sequence": dp_tp(Zero2, "sequence"),
    "3, tensor, untied": dp_tp(Zero3, "tensor", replace(CUT, tied=False)),
    "interleaved, DDP": pp_dp("interleaved", BUCKETS, GPT2),
    **{f"{name}, {s}": pp_dp(name, STAGES[s])
       for name, s in (("ZB-V", "1"), ("1F1B", "2"), ("1F1B", "3, kept"))},
    "GPipe, 3, recomputed": pp_dp("GPipe", Zero3, replace(GPT2, recompute="full")),
    "1F1B, mamba2 by heads": piped(
        "1F1B", replace(HYBRID, mixer=("mamba2", "attention", "mamba2")), None, tensor_parallel,
        axes={"tp": 2}, micro_batches=2),
    "ZB-V, dp, sequence": piped("ZB-V", replace(CUT2, recompute="selective"), None,
                                sequence_parallel, axes={"tp": 2, "dp": 2}, deep=4,
                                micro_batches=2),
    # context parallel: 11 tokens, which no number of ranks divides
    "context, 2": owned(Zero2, CONTEXT, {"dp": 2, "cp": 2}, transform=context_parallel),
    "context of 3": owned(Replicated, replace(CONTEXT, dropout=0.2, recompute="full"), {"cp": 3},
                          transform=context_parallel, precision=EXACT, micro_batches=3),
    "context, by hand": owned(Zero1, CONTEXT, {"cp": 2}, transform=context_parallel,
                              engine=ByHand, micro_batches=2, batches=once_without_targets),
    "context, 1F1B, 3, kept": piped(
        "1F1B", replace(CONTEXT, layers=4, mixer=("mamba2", "mamba", "attention", "attention"),
                        dropout=0.2), KEPT, context_parallel, axes={"cp": 2}, micro_batches=2),
    # attention over cp: a ring in the zigzag order, if no mixer scans
    **{f"ring, {name}": Case(Recipe(layout=Layout(dp=2, cp=2), owner=o), RING)
       for name, o in some("DDP", "3")},
    "ring of 3, striped": attending(LEARNED, order=striped, micro_batches=2, owner=Zero1),
    "ring of 3, 2 tokens": attending(replace(LEARNED, context=2, layers=1)),
    "ring, recomputed": attending(replace(RING, recompute="full"), 2, owner=Zero3),
    **{f"{way.__name__} of 3": attending(replace(RING, heads=6, kv_heads=3), 3, attention=way)
       for way in (ulysses, gathered_attention)},
    "ulysses, Bamba": attending(replace(BAMBA, heads=6, kv_heads=3, bias=True, context=11),
                                attention=ulysses, owner=Zero3, micro_batches=2),
    "ring, Bamba, learned": attending(replace(BAMBA, positions="learned", tied=True), 4),
    "ring, Bamba, tensor": Case(Recipe(layout=Layout(cp=2, tp=2)), BAMBA, micro_batches=2),
    "ring, sequence": cut(partial(context_parallel, inner=sequence_parallel), CUT2,
                          layout={"cp": 2, "tp": 2}, owner=Zero1),
    **{f"USP, {name}": owned(
        OWNERS[o], replace(RING, heads=12, kv_heads=kept), {"ring": r, "heads": 4 // r},
        transform=partial(context_parallel, axis=("ring", "heads")), batches=b, micro_batches=2)
       for name, o, kept, r, b in (("2 by 2", "1", 4, 2, tokens), ("packed", "DDP", 2, 2, packed))},
    # packed documents
    "packed, sequence": cut("sequence", GROUPED, batches=packed, micro_batches=2),
    "packed, ring, contiguous": attending(LEARNED, order=contiguous, batches=packed,
                                          micro_batches=2),
    "packed, ulysses": attending(replace(RING, heads=6, kv_heads=3), attention=ulysses,
                                 batches=packed, owner=Zero1),
    "packed, ring, latent": attending(replace(LATENT, context=11, dropout=0.1), 2, batches=packed),
    "packed, ring, ZB-V": piped("ZB-V", replace(RING, recompute="selective"), batches=packed,
                                axes={"cp": 2}, deep=4, micro_batches=2),
    # experts: on one rank of two, or on two ranks of four
    **{f"experts, {name}, {n}": owned(OWNERS[name], ExpertConfig(experts=2), {"dp": n}, sequences=8,
                                      transform=expert_parallel)
       for name, n in (("DDP", 4), ("1", 2), ("3", 4))},
    # experts, whole on every rank
    **{f"routed, {name}": owned(o, ROUTED, micro_batches=2) for name, o in some("DDP", "3, kept")},
    "routed, drops": owned(Zero2, DROPS, {"dp": 3}, micro_batches=2, sequences=7),
    "routed, interleaved, 1": piped("interleaved", DROPS, Zero1, axes={"dp": 2}, deep=4),
    "routed, tensor": cut("tensor", replace(ROUTED, **WIDE, heads=4), micro_batches=2),
    "routed, sequence": cut("sequence, chunks",
                            replace(ROUTED, **WIDE, heads=4, recompute="full")),
    "routed, ring of 3, recomputed": attending(replace(ROUTED, context=11, recompute="full"),
                                               micro_batches=2, owner=Zero1),
    # experts over ranks
    **{f"dispatched, {name}": over_experts(o, {"dp": 2, "ep": 2}, micro_batches=2)
       for name, o in some("pending", "DDP", "3")},
    "dispatched, drops": over_experts(BUCKETS, {"ep": 3}, DROPS, sequences=7, micro_batches=2,
                                      transport=DirectTransport),
    "dispatched, most ranks have no row": over_experts(
        Zero3, {"ep": 3}, replace(DROPS, layers=2, context=2), sequences=1),
    "dispatched, on the host": over_experts(Zero1, {"ep": 2}, precision=OnHost(EXACT)),
    **{f"dispatched, {name}, {owner}": piped(name, config, OWNERS[owner], axes={"ep": 2}, deep=4,
                                             micro_batches=2)
       for name, config, owner in (("1F1B", ROUTED, "3"), ("ZB-V", DROPS, "DDP"))},
    "dispatched, tensor": Case(Recipe(layout=Layout(ep=2, tp=2)), replace(ROUTED, **WIDE, heads=4)),
    "dispatched, sequence": over_experts(Zero1, {"tp": 2, "ep": 2}, replace(DROPS, **WIDE, heads=4),
                                         inner=sequence_parallel),
    "dispatched, then dp and tp": Case(
        Recipe(layout=Layout(dp=2, ep=2), owner=Zero3), replace(ROUTED, **WIDE, heads=4),
        loads=Recipe(layout=Layout(tp=2, dp=2))),
    # experts over the ranks of other axes
    "dispatched over ep and cp": over_experts(
        Replicated, {"ep": 2, "cp": 2}, replace(ROUTED, context=9), axes=("cp", "ep"),
        inner=context_parallel),
    # nested data axes
    "node x local, 3": owned(Zero3, GPT2, {"node": 2, "local": 2}, sequences=7,
                             transform=partial(plain, data=("node", "local"))),
    # on the host
    "on the host": owned(BUCKETS, precision=OnHost(EXACT), micro_batches=2),
    "experts on the host": owned(Zero1, ExpertConfig(), sequences=8, transform=expert_parallel,
                                 precision=OnHost(EXACT)),
    # from layout to layout
    "three axes, then sequence": Case(
        Recipe(layout=Layout(tp=2, pp=2, dp=2), schedule=SCHEDULES["interleaved"], owner=Zero1),
        replace(CUT2, layers=4), micro_batches=2,
        loads=Recipe(layout=Layout(tp=4, pp=2), schedule=zero_bubble_v, **SEQUENCE)),
    # libraries
    "torch's DDP": Case(TorchDataParallel, ODD, {"dp": 3}, 2, batches=once_without_targets,
                        micro_batches=2),
    "Accelerate": Case(AccelerateDataParallel, ODD, {"dp": 3}, 7, micro_batches=2),
    "Accelerate, not clipped": Case(AccelerateDataParallel, GPT2, {"dp": 3}, sequences=1,
                                    optimizer=NOT_CLIPPED),
    "torch's ZeRO": Case(TorchZeroRedundancy, micro_batches=2,
                         optimizer=OptimizerConfig(betas=(0.7, 0.8), eps=1e-3, weight_decay=0.3,
                                                   clip=0.05)),
    "torch's ZeRO, sgd": Case(TorchZeroRedundancy,
                              optimizer=OptimizerConfig(rule="sgd", momentum=0.5, clip=None)),
    "DTensor, GPT-2": Case(DTensorParallel, replace(CUT2, vocab=32), TENSOR,
                           batches=once_without_targets),
    "DTensor, sequence": Case(partial(DTensorParallel, sequence=True),
                              replace(CUT, dropout=0.2, vocab=32), TENSOR, micro_batches=2,
                              optimizer=OptimizerConfig(rule="sgd", momentum=0.5, clip=None)),
    **{f"FSDP2, {name}": Case(partial(FullyShard, **options), config, sizes, sequences, m, rule,
                              loads=loads)
       for name, options, config, sizes, sequences, m, rule, loads in (
           ("each block", {}, GPT2, {"dp": 3}, 7, 2, RULE, Recipe(owner=Zero3)),
           ("each micro-batch", {"sync_each": True, "prefetch": 1}, GPT2, None, 1, 2, RULE, None),
           ("pairs, kept", {"wrap": groups_of(2), "reshard_after_forward": False}, GPT2, {"dp": 3},
            2, 1, NOT_CLIPPED, None),
           ("hybrid", {}, ODD, {"replicate": 2, "shard": 2}, 3, 2, RULE, None),
           ("offloaded", {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, ODD, None, 5, 1,
            RULE, None),
       )},
    **{f"FSDP1, {name}": Case(partial(Fsdp1, **options), config, sizes, sequences, m, rule,
                              loads=loads)
       for name, options, config, sizes, sequences, m, rule, loads in (
           ("each block", {}, GPT2, None, 5, 3, RULE, FullyShard),
           ("kept", {"sharding": "SHARD_GRAD_OP", "layers": {Block}}, ODD, {"dp": 3}, 2, 1,
            NOT_CLIPPED, None),
           ("hybrid", {"sharding": "HYBRID_SHARD"}, ODD, {"replicate": 2, "shard": 2}, 3, 1, RULE,
            None),
       )},
}  # fmt: skip


# Where each group has one queue, as on NCCL: every kind of recipe. Two ranks and GPipe never show a
# deadlock of messages that are posted early: see four ranks.
ORDERED = {
    "GPipe of 2", "1F1B of 4, few micro-batches", "interleaved of 4", "ZB-H1 of 4", "ZB-V of 4",
    "interleaved, DDP", "1F1B, mamba2 by heads", "ZB-V, dp, sequence", "buckets by hand",
    "1, odd sizes", "2, odd sizes", "3, odd sizes", "tensor", "sequence, 2 key heads",
    "ring, recomputed", "ring, Bamba, learned", "dispatched, on the host", "dispatched, 3",
    "dispatched, DDP", "dispatched, 1F1B, 3", "dispatched, ZB-V, DDP", "ulysses of 3",
    "USP, 2 by 2",
}  # fmt: skip
assert CASES.keys() >= ORDERED
CASES |= {name: replace(CASES[name], ordered=True) for name in ORDERED}
# in a row: cases of one number of ranks, and of one layout
BY_RANKS = dict(sorted(CASES.items(), key=lambda item: item[1].place))


@pytest.mark.parametrize("case", BY_RANKS.values(), ids=BY_RANKS)
def test_it_equals_one_process(ranks, case):
    hold(ranks, case)


@st.composite
def ways(draw):
    """A layout of up to 8 ranks, a schedule, an owner, a transform, and a configuration."""
    pp, dp, cp, tp, ep = draw(st.sampled_from(LAYOUTS))
    name = draw(st.sampled_from(list(SCHEDULES)))
    m = draw(st.integers(1, 3)) * pp
    stages = pp * (2 if name in ("interleaved", "ZB-V") else 1)
    few = ("2", "3", "3, kept") if name not in ("GPipe", "1F1B") else ()
    owner = draw(st.sampled_from([o for n, o in OWNERS.items() if n not in few]))
    owner = owner if dp * cp * ep > 1 else None
    transform = draw(st.sampled_from([None, sequence_parallel])) if tp > 1 else None
    if transform and cp > 1:
        transform = partial(context_parallel, inner=transform)
    if transform and ep > 1:
        transform = partial(over_ranks, inner=transform)
    axes = draw(st.permutations([("dp", dp), ("cp", cp), ("tp", tp), ("pp", pp), ("ep", ep)]))
    experts = draw(mixtures(cut=cp > 1)) if ep > 1 or draw(st.booleans()) else None
    config = GPTConfig(
        **(WIDE | {"layers": draw(st.integers(stages, stages + 2))}),
        heads=4,
        kv_heads=draw(st.sampled_from([4, 2])),
        tied=draw(st.booleans()),
        norm=draw(st.sampled_from(["rms", "layer"])),
        positions=draw(st.sampled_from(["rotary", "learned"])),
        mlp=draw(st.sampled_from(["swiglu", "gelu"])) if experts is None else "swiglu",
        bias=draw(st.booleans()) and experts is None,
        experts=experts,
        dropout=draw(st.sampled_from([0.0, 0.2])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )
    seams = {"owner": owner, "transform": transform}
    seams = {name: seam for name, seam in seams.items() if seam is not None}
    recipe = Recipe(layout=Layout(**dict(axes)), schedule=SCHEDULES[name], **seams)
    return Case(recipe, config, None, draw(st.integers(1, 2 * m * dp * ep)), m)


@st.composite
def mixtures(draw, cut: bool):
    """Experts; without a capacity, if sequences are cut."""
    return ExpertSettings(
        count=draw(st.integers(2, 5)),
        chosen=2,
        hidden=6,
        shared=draw(st.integers(0, 1)),
        after=draw(st.integers(0, 1)),
        capacity=None if cut else draw(st.sampled_from([None, 0.8])),
        loss_rate=draw(st.sampled_from([0.0, 0.1])),
        bias_rate=draw(st.sampled_from([0.0, 0.02])),
    )


LAYOUTS = [(2, 1, 1, 1, 1), (2, 2, 1, 1, 1), (2, 1, 1, 2, 1), (2, 2, 1, 2, 1), (4, 1, 1, 2, 1)]
LAYOUTS += [(2, 1, 2, 1, 1), (2, 2, 2, 1, 1), (2, 1, 2, 2, 1), (2, 1, 1, 1, 2), (2, 1, 2, 1, 2)]
LAYOUTS += [(2, 1, 1, 2, 2), (2, 2, 1, 1, 2)]


@settings(max_examples=2)
@given(case=ways())
def test_any_layout_schedule_owner_and_config(ranks, case):
    hold(ranks, case)

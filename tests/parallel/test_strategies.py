"""Every exact strategy equals one process: each seam in turn, with each kind of model.

Loss, norm, gradients, parameters, moments, an evaluation, a load: see `beside`. Tolerance: 1e-12
absolute in float64. The ranks live as long as this file.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import cycle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from helpers.comm.mesh import Layout
from helpers.comm.transport import DirectTransport, GroupTransport, SharedTransport
from helpers.data.batch import IGNORED, random_pictures
from helpers.models.bamba import bamba
from helpers.models.gpt import Block, GPTConfig
from helpers.models.latent_config import Latent
from helpers.models.ssm_settings import Mamba2Settings, MambaSettings
from helpers.models.vae import VAEConfig
from helpers.parallel.cut_sequence.model import context_parallel
from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.libraries.accelerate_ddp import AccelerateDataParallel
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.libraries.fsdp1 import Fsdp1
from helpers.parallel.libraries.fully_shard import FullyShard
from helpers.parallel.libraries.pipelining import TorchPipelining
from helpers.parallel.libraries.torch_ddp import TorchDataParallel
from helpers.parallel.libraries.wrapping import groups_of, of_type, one_unit
from helpers.parallel.libraries.zero_redundancy import TorchZeroRedundancy
from helpers.parallel.on_host import OnHost
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules import gpipe, naive, one_f_one_b
from helpers.plans.schedules.plain import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v
from helpers.runtime.cluster import Cluster
from tests.parallel.beside import GPT2, ODD, RULE, Case, frozen, hold, tokens
from tests.parallel.experts import ExpertConfig, expert_parallel
from tests.parallel.sample_owners import ByHand, Sharded

pytestmark = pytest.mark.filterwarnings(
    "ignore:ZeRO stage", "ignore::FutureWarning", "ignore:.*NO_SHARD"
)

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
NEXT = {"1": Zero3, "2": Zero1, "3": Zero2, "3, kept": Zero1}  # loads the state of the other
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


def dp_tp(owner, transform, config=CUT2, **rest):
    return cut(transform, config, owner=owner, layout={"dp": 2, "tp": 2}, **rest)


def pp_dp(schedule, owner, config=ODD, **rest):
    return piped(schedule, config, owner, axes={"dp": 2}, **rest)


CASES = {
    # who holds: replicated
    "pending sums": owned(None, GPT2),
    "pending sums, by hand": owned(None, engine=ByHand, precision=EXACT, micro_batches=2),
    "naive": owned(partial(Replicated, replica=NaiveDDP), GPT2, micro_batches=3),
    "bucketed": owned(partial(Replicated, replica=BucketedDDP, bucket_cap_mb=0.002), GPT2),
    "one bucket": owned(Replicated, GPT2, micro_batches=3),
    "buckets": owned(BUCKETS, GPT2, precision=EXACT, micro_batches=2),
    "buckets by hand": owned(BUCKETS, engine=ByHand, sequences=7, layout={"dp": 3}),
    "searching": owned(partial(Replicated, find_unused_parameters=True, **SMALL)),
    "shared memory": Case(partial(DataParallel, transport=SharedTransport, **SMALL), GPT2),
    "a sharded optimizer": owned(Sharded, precision=EXACT, micro_batches=2),
    "a sharded optimizer by hand": owned(Sharded, engine=ByHand, sequences=7, layout={"dp": 3}),
    "another axis": owned(Replicated, layout={"dp": 2, "tp": 2}),
    "another axis alone": owned(None, layout={"tp": 2}),
    "a rank without data": owned(Replicated, GPT2, {"dp": 4}, sequences=3),
    "a batch without targets": owned(Replicated, batches=once_without_targets),
    # who holds: ZeRO
    **{f"{s}, flying": owned(partial(STAGES[s], in_flight=n), GPT2, micro_batches=2)
       for s, n in (("1", 0), ("2", 1), ("3", 1), ("3, kept", 0))},
    **{f"{s}, masters": owned(o, precision=EXACT, micro_batches=2) for s, o in STAGES.items()},
    **{f"{s}, by hand": owned(o, engine=ByHand, micro_batches=2) for s, o in STAGES.items()},
    **{f"{s}, odd sizes": owned(o, PADDED, {"dp": 3}, micro_batches=2, sequences=7,
                                loads=Recipe(owner=NEXT[s])) for s, o in STAGES.items()},
    **{f"{s}, no data": owned(o, GPT2, {"dp": 4}, sequences=3) for s, o in STAGES.items()},
    **{f"{s}, half frozen": freezing(o, "attention", "norm") for s, o in STAGES.items()},
    **{f"{s}, a frozen block": freezing(o, "blocks.1", "norm", config=ODD)
       for s, o in STAGES.items()},
    **{f"{s}, recomputed": owned(o, replace(GPT2, recompute="full", tied=True))
       for s, o in STAGES.items() if s != "1"},
    "3, recomputed in part": owned(Zero3, replace(ODD, recompute="selective")),
    "1, frozen embedding": freezing(Zero1, "embedding"),
    "3, frozen embedding": freezing(Zero3, "embedding", config=ODD),
    "2, one trained vector": freezing(Zero2, "weight", "positions"),
    "3, few sequences": freezing(Zero3, "attention", "norm", sequences=2, layout={"dp": 3}),
    "1, shared memory": owned(partial(Zero1, transport=SharedTransport), GPT2, micro_batches=2),
    "3, shared memory": owned(partial(Zero3, transport=SharedTransport), micro_batches=2),
    "2, gloo": owned(partial(Zero2, transport=GroupTransport)),
    "3, gloo": owned(partial(Zero3, transport=GroupTransport), GPT2),
    # the rule
    "not clipped": owned(Zero3, optimizer=OptimizerConfig(clip=None)),
    "sgd": owned(Zero1, optimizer=OptimizerConfig(rule="sgd", clip=0.1), micro_batches=2),
    "rmsprop": owned(Zero2, optimizer=OptimizerConfig(rule=torch.optim.RMSprop)),
    # the model
    "hybrid": owned(BUCKETS, replace(HYBRID, recompute="full"), micro_batches=2),
    "hybrid, 3": owned(Zero3, HYBRID, micro_batches=2),
    "pure": owned(partial(Replicated, replica=NaiveDDP), PURE),
    "pure, 1": owned(Zero1, PURE, micro_batches=2),
    "pure, 2": owned(Zero2, PURE, micro_batches=2),
    "pure, 3": owned(Zero3, PURE),
    "latent": Case(DataParallel, LATENT, sequences=7),
    "latent, 1": owned(Zero1, LATENT),
    "latent, 3": owned(Zero3, LATENT, micro_batches=2),
    "VAE": Case(DataParallel, VAE, {"dp": 3}, 7, batches=pictures),
    **{f"VAE, {s}": owned(o, VAE, {"dp": 3}, sequences=7, batches=pictures, micro_batches=m)
       for s, o, m in (("1", Zero1, 1), ("2", Zero2, 1), ("3", Zero3, 2))},
    # tensor and sequence parallel
    **{name: cut(name, micro_batches=2) for name in TRANSFORMS},
    **{f"{name}, tied": cut(name, CUT) for name in ("tensor", "sequence", "sequence, chunks")},
    **{f"{name}, grouped": cut(name, GROUPED) for name in TRANSFORMS if "plain" not in name},
    **{f"{name}, recomputed": cut(name, replace(CUT2, recompute="full")) for name in TRANSFORMS},
    "tensor, recomputed in part": cut(
        "tensor", replace(CUT2, recompute="selective", attention="explicit")),
    **{f"{name}, frozen": cut(name, Frozen(**{f.name: getattr(CUT2, f.name) for f in fields(CUT2)}))
       for name in ("tensor", "sequence", "sequence, plain")},
    **{f"{t}, {n} ranks": cut(t, replace(GROUPED, kv_heads=4 if n == 4 else None), n)
       for t in ("tensor", "sequence") for n in (3, 4)},
    **{f"{t}, {n} key heads": cut(t, replace(GROUPED, width=32, heads=8, kv_heads=n), 4)
       for t in ("tensor", "sequence") for n in (1, 2)},
    **{f"{t}, 3 tokens": cut(t, replace(CUT, vocab=3), 4) for t in ("tensor", "sequence")},
    "tensor, shared memory": cut(
        partial(tensor_parallel, transport=SharedTransport), replace(GROUPED, kv_heads=None), 3),
    "sequence, shared memory": cut(
        partial(sequence_parallel, transport=SharedTransport), replace(GROUPED, kv_heads=None), 3),
    "sequence, direct": cut(partial(sequence_parallel, chunks=4, transport=DirectTransport),
                            replace(GROUPED, kv_heads=None), 3, micro_batches=2),
    "tensor, a batch without targets": cut("tensor", CUT, batches=once_without_targets),
    "sequence, a batch without targets": cut("sequence", CUT, batches=once_without_targets),
    "tensor without the axis": cut("tensor", layout={"dp": 2}),
    "sequence on one rank": cut("sequence", ranks=1),
    **{f"mamba2 by heads, {t}, {g} groups": cut(
        t, replace(HEADS, mamba2=replace(HEADS.mamba2, groups=g), bias=g == 2))
       for t in ("tensor", "sequence") for g in (1, 2)},
    "mamba2 by heads, 3 ranks": cut(
        "sequence", replace(HEADS, mamba2=replace(HEADS.mamba2, groups=6)), 3),
    **{f"bamba, {t}": cut(f"{t}, plain", replace(BAMBA, dropout=0.2, recompute="full"),
                          micro_batches=2) for t in ("tensor", "sequence")},
    "bamba, DDP": cut("tensor", BAMBA, owner=Replicated, layout={"dp": 2, "tp": 2}),
    # pipelines
    **{f"{name} of 2": piped(name) for name in SCHEDULES},
    **{f"{name} of 2, grouped": piped(name, replace(GROUPED, heads=4, kv_heads=2), deep=6)
       for name in SCHEDULES},
    "1F1B of 2, tied": piped("1F1B", CUT, batches=few_targets),
    "ZB-V of 2, tied": piped("ZB-V", CUT),
    **{f"{name} of {n}": piped(name, ranks=n, deep=2 * n, micro_batches=2 * n)
       for n, name in ((3, "naive"), (3, "interleaved"), (3, "ZB-H1"), (4, "GPipe"), (4, "1F1B"),
                       (4, "ZB-V"))},
    "GPipe, few micro-batches": piped("GPipe", CUT, ranks=4, micro_batches=2),
    "1F1B, few micro-batches": piped("1F1B", CUT, ranks=4, micro_batches=2),
    "1F1B, few sequences": piped("1F1B", sequences=2),
    "ZB-V, few sequences": piped("ZB-V", sequences=2),
    **{f"{name}, recomputed {how}": piped(name, replace(CUT2, recompute=how, attention="explicit"))
       for name in ("1F1B", "ZB-V") for how in ("selective", "full")},
    "hybrid, 1F1B": piped("1F1B", replace(HYBRID, dropout=0.2), micro_batches=3),
    "hybrid, ZB-H1": piped("ZB-H1", HYBRID, micro_batches=3),
    "pure, ZB-H1": piped("ZB-H1", PURE, micro_batches=3),
    "latent, 1F1B": piped("1F1B", LATENT, micro_batches=2),
    # two axes and three
    "naive, tensor": dp_tp(partial(Replicated, replica=NaiveDDP), "tensor", sequences=3),
    "bucketed, sequence": dp_tp(partial(Replicated, replica=BucketedDDP), "sequence", sequences=3),
    "DDP, sequence": dp_tp(BUCKETS, "sequence", sequences=1),
    "DDP, tensor": dp_tp(BUCKETS, "tensor", sequences=1),
    **{f"{s}, tensor": dp_tp(o, "tensor", CUT, micro_batches=2) for s, o in STAGES.items()},
    "DDP, sequence, masters": dp_tp(
        partial(Replicated, bucket_cap_mb=0.005, transport=SharedTransport), "sequence", ODD,
        precision=EXACT, micro_batches=2),
    "1, tensor, untied": dp_tp(Zero1, "tensor", replace(CUT, tied=False)),
    "3, tensor, untied": dp_tp(Zero3, "tensor", replace(CUT, tied=False)),
    **{f"{s}, sequence": dp_tp(o, "sequence") for s, o in STAGES.items()},
    "1F1B, naive": pp_dp("1F1B", partial(Replicated, replica=NaiveDDP), GPT2),
    "ZB-V, bucketed": pp_dp("ZB-V", partial(Replicated, replica=BucketedDDP), GPT2),
    **{f"{name}, DDP": pp_dp(name, BUCKETS, GPT2) for name in ("1F1B", "interleaved", "ZB-V")},
    **{f"{name}, 1": pp_dp(name, Zero1) for name in SCHEDULES},
    **{f"{name}, {s}": pp_dp(name, STAGES[s]) for name in ("GPipe", "1F1B")
       for s in STAGES if s != "1"},
    **{f"1F1B, {s}, recomputed": pp_dp("1F1B", o, replace(GPT2, recompute="full"))
       for s, o in STAGES.items()},
    "1F1B, mamba2 by heads": piped(
        "1F1B", replace(HYBRID, mixer=("mamba2", "attention", "mamba2")), None, tensor_parallel,
        axes={"tp": 2}, micro_batches=2),
    **{f"1F1B, dp, {t}": piped("1F1B", replace(CUT2, recompute="selective"), None, TRANSFORMS[t],
                               axes={"dp": 2, "tp": 2}, deep=4)
       for t in ("tensor", "sequence, inputs kept, chunks")},
    "ZB-V, dp, sequence": piped("ZB-V", replace(CUT2, recompute="selective"), None,
                                sequence_parallel, axes={"tp": 2, "dp": 2}, deep=4),
    # context parallel: 11 tokens, which no number of ranks divides
    **{f"context, {name}": owned(o, CONTEXT, {"dp": 2, "cp": 2}, transform=context_parallel)
       for name, o in (("pending", None), *REPLICATED.items(), *STAGES.items())},
    "context of 3": owned(Replicated, replace(CONTEXT, dropout=0.2, recompute="full"), {"cp": 3},
                          transform=context_parallel, precision=EXACT, micro_batches=3),
    "context, by hand": owned(Zero1, CONTEXT, {"cp": 2}, transform=context_parallel,
                              engine=ByHand, micro_batches=2),
    "context, a batch without targets": owned(None, CONTEXT, {"cp": 2}, transform=context_parallel,
                                              batches=once_without_targets),
    "context without the axis": owned(Replicated, CONTEXT, transform=context_parallel),
    **{f"context, {name}": piped(name, replace(CONTEXT, dropout=0.2), None, context_parallel,
                                 axes={"cp": 2}, micro_batches=2) for name in ("GPipe", "ZB-H1")},
    "context, interleaved": piped(
        "interleaved", replace(CONTEXT, mixer="mamba2", layers=4), None, context_parallel,
        axes={"cp": 2}, deep=4),
    **{f"context, 1F1B, {name}": piped("1F1B", CONTEXT, o, context_parallel,
                                       axes={"cp": 2, "dp": 2}, micro_batches=2)
       for name, o in (("DDP", BUCKETS), ("1", Zero1), ("3", Zero3))},
    "a layout with cp": Case(Recipe(layout=Layout(dp=2, cp=2)), CONTEXT),
    # experts: on one rank of two, or on two ranks of four
    **{f"experts, {name}, {n}": owned(o, ExpertConfig(experts=e), {"dp": n}, sequences=8,
                                      transform=expert_parallel)
       for name, o in (("pending", None), *REPLICATED.items(), *STAGES.items())
       for n, e in ((2, 2), (4, 2))},
    "4 experts, 3": owned(Zero3, ExpertConfig(experts=4), {"dp": 4}, sequences=8, micro_batches=2,
                          transform=expert_parallel),
    # nested data axes
    **{f"node x local, {name}": owned(o, GPT2, {"node": 2, "local": 2}, sequences=7,
                                      transform=partial(plain, data=("node", "local")))
       for name, o in (("pending", None), ("DDP", BUCKETS), *STAGES.items())},
    "node x local, tensor": owned(
        Zero3, CUT, {"node": 2, "tp": 2, "local": 2},
        transform=partial(tensor_parallel, data=("node", "local"))),
    # on the host
    **{f"on the host, {name}": owned(o, precision=OnHost(p), micro_batches=2)
       for (name, o), p in zip((("pending", None), *REPLICATED.items(), *STAGES.items()),
                               cycle((Plain(), EXACT)))},
    # from layout to layout
    "8 replicas, then three axes": Case(
        Recipe(layout=Layout(dp=8)), replace(CUT2, layers=4), sequences=9, micro_batches=4,
        loads=Recipe(layout=Layout(pp=2, dp=2, tp=2), schedule=gpipe)),
    "three axes, then sequence": Case(
        Recipe(layout=Layout(tp=2, pp=2, dp=2), schedule=SCHEDULES["interleaved"], owner=Zero1),
        replace(CUT2, layers=4), micro_batches=4,
        loads=Recipe(layout=Layout(tp=4, pp=2), schedule=zero_bubble_v, **SEQUENCE)),
    # libraries
    "torch's DDP": Case(TorchDataParallel, ODD, {"dp": 3}, 7, micro_batches=2),
    "torch's DDP, no data": Case(TorchDataParallel, GPT2, {"dp": 4}, 3),
    "torch's DDP, no targets": Case(TorchDataParallel, batches=once_without_targets),
    "torch's DDP, VAE": Case(TorchDataParallel, VAE, {"dp": 3}, 7, batches=pictures),
    "Accelerate": Case(AccelerateDataParallel, ODD, {"dp": 3}, 7, micro_batches=2),
    "Accelerate, not clipped": Case(AccelerateDataParallel, GPT2, sequences=1,
                                    optimizer=OptimizerConfig(rule="sgd", clip=None)),
    "torch's ZeRO": Case(TorchZeroRedundancy, micro_batches=2,
                         optimizer=OptimizerConfig(betas=(0.7, 0.8), eps=1e-3, weight_decay=0.3,
                                                   clip=0.05)),
    "torch's ZeRO, sgd": Case(TorchZeroRedundancy,
                              optimizer=OptimizerConfig(rule="sgd", momentum=0.5, clip=None)),
    "DTensor": Case(DTensorParallel, replace(CUT, dropout=0.2), TENSOR, micro_batches=2),
    "DTensor, GPT-2": Case(DTensorParallel, replace(CUT2, dropout=0.0, vocab=32), TENSOR,
                           batches=once_without_targets),
    "DTensor, sequence": Case(partial(DTensorParallel, sequence=True),
                              replace(CUT, dropout=0.2, vocab=32), TENSOR, micro_batches=2,
                              optimizer=OptimizerConfig(rule="sgd", momentum=0.5, clip=None)),
    **{f"FSDP2, {name}": Case(partial(FullyShard, **options), config, sizes, sequences, m, rule,
                              loads=loads)
       for name, options, config, sizes, sequences, m, rule, loads in (
           ("each block", {}, GPT2, {"dp": 3}, 7, 2, RULE, Recipe(owner=Zero3)),
           ("one unit", {"wrap": one_unit}, ODD, None, 5, 3, RULE, None),
           ("each micro-batch", {"sync_each": True, "prefetch": 1}, GPT2, None, 1, 2, RULE, None),
           ("prefetched", {"wrap": of_type(Block), "prefetch": 2}, ODD, None, 5, 3, RULE, None),
           ("pairs, kept", {"wrap": groups_of(2), "reshard_after_forward": False}, GPT2, {"dp": 4},
            3, 1, NOT_CLIPPED, None),
           ("to two ranks", {"reshard_after_forward": 2}, ODD, {"dp": 4}, 5, 1, RULE, None),
           ("hybrid", {}, ODD, {"replicate": 2, "shard": 2}, 3, 2, RULE, None),
           ("offloaded", {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, ODD, None, 5, 1,
            RULE, None),
           ("float64 policy", {"mp_policy": MixedPrecisionPolicy(
               param_dtype=torch.float64, reduce_dtype=torch.float64)}, ODD, None, 5, 1,
            NOT_CLIPPED, None),
       )},
    "FSDP2, VAE": Case(FullyShard, VAE, {"dp": 3}, 7, micro_batches=2, batches=pictures),
    **{f"FSDP1, {name}": Case(partial(Fsdp1, **options), config, sizes, sequences, m, rule,
                              loads=loads)
       for name, options, config, sizes, sequences, m, rule, loads in (
           ("each block", {}, GPT2, None, 5, 3, RULE, FullyShard),
           ("kept", {"sharding": "SHARD_GRAD_OP", "layers": {Block}}, ODD, {"dp": 4}, 3, 1, RULE,
            None),
           ("whole", {"sharding": "NO_SHARD"}, ODD, None, 5, 3, RULE, None),
           ("tied, not clipped", {}, replace(GPT2, tied=True), None, 1, 1, NOT_CLIPPED, None),
           ("hybrid", {"sharding": "HYBRID_SHARD"}, ODD, {"replicate": 2, "shard": 2}, 3, 1, RULE,
            None),
           ("one replica", {"sharding": "HYBRID_SHARD"}, ODD, {"replicate": 1, "shard": 2}, 5, 1,
            RULE, None),
       )},
    **{f"torch's {s}": Case(partial(TorchPipelining, schedule=s), replace(ODD, layers=4),
                            {"pp": 2}, sequences=8, micro_batches=4)
       for s in ("GPipe", "1F1B", "interleaved", "ZB-V")},
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    """Ranks by their number, started once for all tests of this file."""
    started: dict[int, Cluster] = {}

    def get(number: int) -> Cluster:
        if number not in started:
            started[number] = Cluster(workers=number, device="cpu")
        return started[number]

    yield get
    for cluster in started.values():
        cluster.close()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_equals_one_process(ranks, case):
    hold(ranks, case)


@st.composite
def ways(draw):
    """A layout of up to 8 ranks, a schedule, an owner, a transform, and a configuration."""
    pp, dp, tp = draw(st.sampled_from(LAYOUTS))
    name = draw(st.sampled_from(list(SCHEDULES)))
    m = draw(st.integers(1, 3)) * pp
    stages = pp * (2 if name in ("interleaved", "ZB-V") else 1)
    owners = [None, *OWNERS, *(SHARDED if name in ("GPipe", "1F1B") else ())]
    owner = draw(st.sampled_from(owners)) if dp > 1 else None
    transform = draw(st.sampled_from([None, sequence_parallel])) if tp > 1 else None
    axes = draw(st.permutations([("dp", dp), ("tp", tp), ("pp", pp)]))
    config = GPTConfig(
        **(WIDE | {"layers": draw(st.integers(stages, stages + 2))}),
        heads=4,
        kv_heads=draw(st.sampled_from([4, 2])),
        tied=draw(st.booleans()),
        norm=draw(st.sampled_from(["rms", "layer"])),
        positions=draw(st.sampled_from(["rotary", "learned"])),
        mlp=draw(st.sampled_from(["swiglu", "gelu"])),
        bias=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.2])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )
    seams = {"owner": owner, "transform": transform}
    seams = {name: seam for name, seam in seams.items() if seam is not None}
    recipe = Recipe(layout=Layout(**dict(axes)), schedule=SCHEDULES[name], **seams)
    return Case(recipe, config, None, draw(st.integers(1, 2 * m * dp)), m)


LAYOUTS = [(2, 1, 1), (2, 2, 1), (2, 1, 2), (3, 2, 1), (2, 2, 2), (4, 2, 1), (4, 1, 2), (2, 1, 4)]
OWNERS = [partial(Replicated, replica=NaiveDDP), partial(Replicated, bucket_cap_mb=0.01), Zero1]
SHARDED = [Zero2, Zero3, KEPT]


@settings(max_examples=5)
@given(case=ways())
def test_any_layout_schedule_owner_and_config(ranks, case):
    hold(ranks, case)

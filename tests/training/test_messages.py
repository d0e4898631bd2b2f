"""A step's planned messages are those that the ledger counts: every call, axis and payload."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout
from helpers.comm.transport import GroupTransport
from helpers.data.batch import random_batch
from helpers.models.config import GPTConfig
from helpers.models.experts import routing
from helpers.models.settings import ExpertSettings
from helpers.parallel.cut_sequence.collective import gathered_attention, ulysses
from helpers.parallel.cut_sequence.model import context_parallel
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.messages import wire
from helpers.plans.schedules import gpipe, interleaved, naive, one_f_one_b
from helpers.plans.schedules import zero_bubble_h1 as h1
from helpers.plans.schedules import zero_bubble_v as v
from helpers.plans.step_messages import step_messages
from helpers.runtime.launch import launch
from tests.parallel.beside import mesh_of
from tests.training.planned import apart, step_plan

GPT = GPTConfig(vocab=64, context=8, width=12, layers=4, heads=2, tied=False)
TIED, FULL = replace(GPT, tied=True), replace(GPT, recompute="full")
ODD = replace(  # LayerNorms, biases and positions; odd sizes, which ZeRO pads
    TIED, vocab=34, width=14, norm="layer", mlp="gelu", bias=True, positions="learned"
)
ROUTED = replace(GPT, experts=ExpertSettings(count=4, chosen=2, hidden=6, shared=1, after=1))
SELECTIVE = replace(TIED, recompute="selective", attention="explicit")
OWNERS = {1: Zero1, 2: Zero2, 3: Zero3}
# layout, config, micro-batches, schedule, options of the plan
TWO = [
    (Layout(dp=2), GPT, 2, None, {}),
    (Layout(dp=2), ODD, 1, None, {"bucket": (0.01 * 2**20, 0.005 * 2**20)}),
    *((Layout(dp=2), ODD, 2, None, {"zero": zero}) for zero in (1, 2, 3)),
    *((Layout(dp=2), c, 1, None, {"zero": 3}) for c in (GPT, FULL)),
    (Layout(dp=2), GPT, 2, None, {"zero": 3, "reshard": False}),
    *((Layout(tp=2), c, 2, None, {}) for c in (GPT, ODD, FULL, SELECTIVE)),
    *((Layout(tp=2), c, 2, None, {"sequence": True}) for c in (ODD, FULL)),
    (Layout(tp=2), TIED, 1, None, {"sequence": True, "again": False}),
    *((Layout(pp=2), GPT, 4, s, {}) for s in (gpipe, h1)),
    *((Layout(pp=2), TIED, 4, s, {}) for s in (naive, one_f_one_b, v)),
    (Layout(pp=2), ODD, 4, partial(interleaved, chunks=2), {}),
    *(
        (Layout(cp=2), c, 2, None, {"zero": zero})
        for c, zero in ((GPT, 0), (SELECTIVE, 0), (ODD, 1), (TIED, 2), (FULL, 3))
    ),
    *(
        (Layout(cp=2), c, 2, None, {"way": way})
        for c, way in ((GPT, "gathered"), (FULL, "ulysses"), (SELECTIVE, "gathered"))
    ),
    *((Layout(ep=2), ROUTED, m, None, {"zero": zero}) for zero, m in ((0, 1), (1, 2), (3, 2))),
    (Layout(ep=2), replace(ROUTED, recompute="full"), 2, None, {"zero": 2}),
    *(
        (Layout(tp=2), replace(ROUTED, recompute=again), 2, None, {"sequence": sequence})
        for again, sequence in (("none", False), ("none", True), ("full", False), ("full", True))
    ),
]
FOUR = [
    (Layout(pp=4), TIED, 4, one_f_one_b, {}),
    (Layout(tp=4), replace(GPT, width=16, heads=4), 1, None, {"sequence": True}),
    *((Layout(pp=2, dp=2), TIED, 2, one_f_one_b, {"zero": zero}) for zero in (0, 3)),
    (Layout(dp=2, tp=2), TIED, 2, None, {"zero": 3}),
    (Layout(dp=2, tp=2), ODD, 1, None, {}),
    *((Layout(pp=2, tp=2), c, 2, v, {}) for c in (TIED, FULL)),
    (Layout(pp=2, tp=2), TIED, 2, one_f_one_b, {"sequence": True}),
    (Layout(dp=2, cp=2), TIED, 2, None, {"zero": 3}),
    (Layout(cp=2, tp=2), replace(ODD, width=16, heads=4, kv_heads=2), 2, None, {}),
    (Layout(pp=2, cp=2), TIED, 2, one_f_one_b, {"zero": 2}),
    (Layout(cp=4), replace(GPT, recompute="selective"), 1, None, {}),
    *((Layout(dp=2, ep=2), ROUTED, 2, None, {"zero": zero}) for zero in (0, 3)),
    (Layout(ep=2, tp=2), ROUTED, 1, None, {}),
    (Layout(pp=2, ep=2), replace(ROUTED, tied=True), 2, one_f_one_b, {"zero": 1}),
    (Layout(cp=2, ep=2), ROUTED, 1, None, {}),
]
EIGHT = [
    (Layout(pp=2, dp=2, cp=2), TIED, 2, one_f_one_b, {"zero": 1}),
    (Layout(dp=2, ep=2, tp=2), ROUTED, 2, None, {}),
]
pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")


def recipe_of(layout, schedule, options) -> Recipe:
    seams = {"layout": layout, "schedule": schedule}
    if zero := options.get("zero"):
        how = {"reshard_after_forward": False} if options.get("reshard") is False else {}
        seams["owner"] = partial(OWNERS[zero], transport=GroupTransport, **how)
    if "bucket" in options:
        cap, first = (size / 2**20 for size in options["bucket"])
        seams["owner"] = partial(Replicated, bucket_cap_mb=cap, first_bucket_mb=first)
    if options.get("sequence"):
        seams["transform"] = partial(sequence_parallel, again=options.get("again", True))
    if way := {"ulysses": ulysses, "gathered": gathered_attention}.get(options.get("way")):
        seams["transform"] = partial(context_parallel, attention=way)
    return Recipe(**seams)


def balanced(scores, k, groups=1, limit=None):
    """A choice that gives each expert as many tokens."""
    *places, experts = scores.shape
    return (torch.arange(math.prod(places) * k) % experts).view(*places, k)


def counted(worker, cases):
    """For each case, the ledger of one step."""
    torch.set_num_threads(1)
    routing.choose = balanced
    found = []
    for layout, config, m, schedule, options in cases:
        trainer = recipe_of(layout, schedule, options)(
            config, 0, mesh_of(worker, layout), micro_batches=m, dtype=torch.float64
        )
        batch = random_batch(trainer.data_rank, 4, config.context, config.vocab)
        for _ in range(2):  # the second step: ZeRO 3 gathers ahead, DDP has seen the order
            with ledger() as log:
                trainer.step(batch)
        found.append(log)
        worker.log(cases=len(found))  # a sign of life, also on a busy machine
        trainer.close()
    return found


@pytest.mark.parametrize(("ranks", "cases"), [(2, TWO), (4, FOUR), (8, EIGHT)])
def test_the_plan_is_the_ledger(ranks, cases):
    runs = launch(counted, ranks, device="cpu", cases=cases)
    for number, (layout, config, m, make, options) in enumerate(cases):
        schedule = make(layout.size("pp"), m) if make else None
        plan = step_plan(
            config, layout, sequences=4 // m, tokens=8, micro_batches=m, schedule=schedule,
            dtype=torch.float64, **options,
        )  # fmt: skip
        for rank, run in enumerate(runs):
            messages = step_messages(plan, layout.coordinates(rank).get("pp", 0))
            wrong = apart(messages, run[number], layout)
            assert not wrong, (layout.title(), rank, options, wrong)
            sent = sum(wire(messages).values())
            assert sent == pytest.approx(run[number].wire, rel=1e-12)
            assert math.isfinite(sent)

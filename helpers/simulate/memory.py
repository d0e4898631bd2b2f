"""Bytes of a plan at the peak of a step, by kind, on the GPU that needs the most."""

from dataclasses import replace
from functools import lru_cache

from helpers.models.shape import GPTShape
from helpers.plans.activation_memory import block_activations
from helpers.plans.schedules import in_flight
from helpers.plans.zero_memory import MIXED, zero_memory
from helpers.simulate.kernels import NUMBER, numbers
from helpers.simulate.plan import Plan, cut, parameters, rows_of


@lru_cache(8192)  # the links of a cluster do not change it
def memory(config: GPTShape, plan: Plan) -> dict[str, float]:
    """{kind: bytes} on the first or the last place of the pipeline, whichever needs more."""
    places = {0, plan.ranks("pp") - 1}
    return max((at(config, plan, place) for place in places), key=lambda kinds: sum(kinds.values()))


@lru_cache
def in_backward(config: GPTShape) -> GPTShape:
    """The model without recomputation: a block that runs again keeps its scores, or has none."""
    return replace(config, recompute="none" if config.attention == "explicit" else "selective")


def at(config: GPTShape, plan: Plan, place: int) -> dict[str, float]:
    """{kind: bytes} on a GPU of this place.

    "working": under full recomputation a block runs again in the backward, and keeps everything
    meanwhile; on the last place the loss has its logits in 2 bytes and in 4, and their gradient in
    2. "gathered": two whole blocks of ZeRO-3, and a tied embedding, which stays until the step
    ends. Left out: what the allocator and the libraries waste.
    """
    p, t, m = plan.ranks("pp"), plan.ranks("tp"), plan.micro_batches
    on, local = cut(config, plan)[place], plan.tokens // plan.ranks("cp")
    shards = plan.ranks("dp") * plan.ranks("cp")
    found = zero_memory(parameters(rows_of(config, plan, on)), shards, plan.zero, each=MIXED)
    found = found.by_kind()

    alone = in_backward(config)
    again = config.recompute == "full"
    kept = {"sequences": plan.micro, "tokens": local, "ranks": t}
    kept |= {"sharded": plan.sequence, "again": True}  # its messages gather again, too
    v, after = plan.chunks, p - place
    flying = min(after if v == 1 else ((v - 1) * p + 2 * after - 1) / v, m)
    if schedule := plan.made:
        flying = in_flight(schedule)[place] / len(schedule.stages_of(place))
    each = block_activations(config if config.recompute != "none" else alone, **kept)
    found["activations"] = flying * on.blocks * size(config, each, t)
    working = size(config, block_activations(alone, **kept), t) if again else 0.0
    logits = plan.micro * local * config.vocab / t * 8 * on.last
    found["working"] = max(working, logits)
    if plan.zero == 3:
        each, kept = numbers(config), config.tied and on.first and on.last
        found["gathered"] = NUMBER * (2 * each["block"] + kept * each["embedding"]) / t
    return found


def size(config: GPTShape, terms: dict[str, int], t: int) -> float:
    """Add up a block's terms. Fused attention keeps the keys and values of K heads, not of H."""
    heads, keys = config.heads // t, max(1, config.key_heads // t)
    shared = 2 * (heads - keys) / (3 * heads) * (config.attention == "sdpa")
    return sum(terms.values()) - shared * terms.get("queries, keys, values", 0)

"""Cut the layers of a model into stages, so that the slowest stage is as fast as possible."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from helpers.models.config import GPTConfig
from helpers.models.counts import flops_per_token


def layer_costs(config: GPTConfig, tokens: int | None = None) -> tuple[float, list[float], float]:
    """The training FLOPs per token of the embedding, of each block, and of the head.

    The embedding is no matrix product. It counts 4 D in the forward, as in Kaplan et al. 2020
    (arXiv:2001.08361, table 1), and twice as much in the backward.

    Args:
        tokens: T; None for the whole context.
    """
    kinds = [(config.mixer_of(layer), config.routed(layer)) for layer in range(config.layers)]
    cost = {}
    for kind in set(kinds):
        experts = replace(config.experts, after=0) if kind[1] else None
        one = replace(config, layers=1, mixer=kind[0], experts=experts)
        block = flops_per_token(one, tokens, embedding=False)
        cost[kind] = float(block + flops_per_token(one, tokens, part="recomputed"))
    head = flops_per_token(config, tokens) - flops_per_token(config, tokens, embedding=False)
    return 3.0 * 4 * config.width, [cost[kind] for kind in kinds], float(head)


def stage_costs(costs: Sequence[float], shares: Sequence[range], first: float, last: float):
    """The cost of each stage: its layers, and the model's two ends."""
    sums = [math.fsum(costs[number] for number in share) for share in shares]
    sums[0] += first
    sums[-1] += last
    return sums


def split(
    costs: Sequence[float], stages: int, *, first: float = 0.0, last: float = 0.0
) -> list[range]:
    """Cut layers into stages of neighbours: the largest cost of a stage is as small as possible.

    Among such cuts it chooses the most even: the smallest sum of squared costs. Dynamic programming
    over (stages so far, layers so far) finds both; it takes stages x layers² steps.

    Args:
        costs: of each layer, not negative.
        first, last: what the first stage and the last stage compute besides their layers: the
            embedding and the head.

    Returns:
        The numbers of each stage's layers. Each stage has at least one.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    if len(costs) < stages:
        raise ValueError(
            f"{len(costs)} layers cannot fill {stages} stages: each stage needs a layer. Use more "
            "layers, or fewer stages (fewer ranks along pp, or fewer stages on each rank)"
        )
    before = [0.0, *accumulate(costs)]

    def cost(stage: int, start: int, stop: int) -> float:
        ends = first * (stage == 0) + last * (stage == stages - 1)
        return before[stop] - before[start] + ends

    most, _ = best_cut(cost, stages, len(costs), max)
    limit = most * (1 + 1e-12)  # the same sum, rounded otherwise
    _, stops = best_cut(cost, stages, len(costs), lambda total, one: total + one * one, limit)
    return [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def best_cut(cost, stages: int, layers: int, add, limit: float = math.inf):
    """The smallest total of the stages' costs, and where each stage stops.

    Args:
        cost: (stage, start, stop) -> cost.
        add: (total so far, a stage's cost) -> total; a larger total so far gives no smaller result.
        limit: the largest cost that a stage may have.
    """
    table = {0: (0.0, ())}  # layers so far -> the best total, and the stops
    for stage in range(stages):
        found = {}
        for stop in range(stage + 1, layers - (stages - stage - 1) + 1):
            choices = [
                (add(total, one), (*stops, stop))
                for start, (total, stops) in table.items()
                if start < stop and (one := cost(stage, start, stop)) <= limit
            ]
            if choices:
                found[stop] = min(choices)
        table = found
    return table[layers]

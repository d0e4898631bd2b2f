"""Exercise of week 7: choose the blocks per unit of `fully_shard`, and predict the peak memory."""

import math
from functools import partial

import torch

from helpers.check.oracle import NotRight, examine, is_number
from helpers.check.verdict import Verdict
from helpers.plans.unit_memory import peak

BLOCKS, WIDTH = 6, 48
STEPS = 3  # to measure
NEAR = 0.05  # of the measured peak: activations, norms and the embedding are not in the formula
# Ranks, and the blocks per unit that fit. Each budget is between this peak and the next one.
CASES = [(3, 1), (2, 2), (2, 3)]


def choose_wrapping(fn) -> Verdict:
    """Check `fn(blocks, block_bytes, ranks, budget) -> (blocks_per_unit, peak_bytes)`.

    `fully_shard` trains a GPT with this wrapping on ranks, and the peak of its memory is measured.
    """
    cases = [(ranks, {"fits": fits}) for ranks, fits in CASES]
    # the student's function sends nothing, so only a busy machine keeps a rank silent
    return examine("choose_wrapping", fn, cases, run_wrapping, judge_wrapping, patience=30)


def config():
    from helpers.models.gpt import GPTConfig

    return GPTConfig(vocab=8, context=2, width=WIDTH, layers=BLOCKS, heads=2)


def block_bytes() -> int:
    """The bytes of a block's parameters in float32."""
    model = config().build(device="meta")
    return 4 * sum(p.numel() for p in model.blocks["0"].parameters())


def expected(ranks: int, per_unit: int, block: int) -> float:
    """The peak by the formula: equal units, all parameters in blocks."""
    return peak([per_unit * block] * (BLOCKS // per_unit), ranks).total


def budget_of(ranks: int, fits: int, block: int) -> int:
    """A budget between the peak of `fits` blocks per unit and that of the next larger unit."""
    low = expected(ranks, fits, block)
    larger = [expected(ranks, k, block) for k in divisors() if k > fits]
    return round((low + larger[0]) / 2 if larger else 1.2 * low)


def divisors() -> list[int]:
    return [k for k in range(1, BLOCKS + 1) if BLOCKS % k == 0]


def run_wrapping(worker, solve, fits):
    """Ask for the wrapping, train with it, and measure the peak."""
    block = block_bytes()
    budget = budget_of(worker.world_size, fits, block)
    answer = solve(BLOCKS, block, worker.world_size, budget)
    report = {"answer": described(answer), "block": block, "budget": budget}
    if isinstance(report["answer"], str) or report["answer"][0] not in divisors():
        return report
    return report | {"peak": measured(worker, int(report["answer"][0]))}  # it may be 2.0


def described(answer):
    """The pair of numbers, or in words what else it is."""
    pair = isinstance(answer, tuple | list) and len(answer) == 2
    if not pair or not all(map(is_number, answer)):
        return repr(answer)[:200]
    return answer[0], float(answer[1])


def measured(worker, per_unit: int) -> int:
    """The peak of a step with this many blocks per unit, in bytes."""
    from helpers.comm.mesh import Layout, make_mesh
    from helpers.data.batch import random_batch
    from helpers.measure.memory import memory_of
    from helpers.parallel.libraries.fully_shard import FullyShard
    from helpers.parallel.libraries.wrapping import groups_of

    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    trained = FullyShard(config(), 0, mesh, wrap=groups_of(per_unit))
    batch = random_batch(worker.rank, 1, 2, 8)
    step = partial(trained.step, batch)
    step()  # makes the optimizer's state
    # The least of several steps: a buffer that is released late would add to one of them.
    return min(memory_of(step, trained.model, trained.optimizer).peak for _ in range(STEPS))


def judge_wrapping(runs, fits):
    n, run = len(runs), runs[0]
    answer, block, budget = run["answer"], run["block"], run["budget"]
    if isinstance(answer, str):
        raise NotRight(
            f"returned {answer}", "Return two numbers: the blocks in a unit, and the peak in bytes."
        )
    per_unit, said = answer
    given = f"{BLOCKS} blocks of {block:,} bytes, budget {budget:,} bytes"
    if per_unit not in divisors():
        raise NotRight(
            f"{given}: {per_unit} blocks in a unit",
            f"The units are equal: the number must divide {BLOCKS} and be at least 1.",
        )
    right = max(one["peak"] for one in runs)
    finding = f"{given}: {per_unit} blocks in a unit; you said {said:,.0f} bytes, and a rank held "
    if not math.isclose(said, right, rel_tol=NEAR):
        raise NotRight(f"{finding}{right:,}", hint_peak(said, per_unit, n, block))
    if right > budget:
        raise NotRight(
            f"{finding}{right:,}", "Your prediction is right, but it is above the budget."
        )
    if per_unit != fits:
        raise NotRight(
            f"{finding}{right:,}",
            "It fits, but a larger unit fits too. Larger units need fewer messages. Try every "
            "number that divides the blocks.",
        )


def hint_peak(said: float, per_unit: int, ranks: int, block: int) -> str:
    """Which common mistake gives this peak?"""
    total, unit = BLOCKS * block, per_unit * block
    units = BLOCKS // per_unit
    right = expected(ranks, per_unit, block)
    states, shards = 3 * total / ranks, max(units - 2, 0) * unit / ranks
    transient = right - states
    known = [
        (right / 4, "Return bytes. That is how many numbers there are."),
        (right - 2 * total / ranks, "AdamW keeps two averages for each parameter of the shard."),
        (states + total / ranks + unit, "That is the formula of week 6: shards and one gathered "
         "unit. What else does the backward hold? Look at the moments in the figure."),
        (states + unit, "Shards and one gathered unit: that is the forward. Which moment of the "
         "backward has the most?"),
        (3 * total + transient, "The states are sharded: which part of them has a rank?"),
        (total / ranks * 4 + transient, "Not all gradient shards are there at this moment: the "
         "units that are still to come have none."),
        (states + 2 * unit + shards, "Parameters and gradients of one unit. Which buffers are "
         "there too: for a gather, for a reduce-scatter?"),
        (states + 3 * unit + shards, "One buffer is missing: at the backward of a unit the next "
         "unit is fetched, and the last unit's gradients are still being sent."),
        (states + 4 * unit + shards, "With one or two units the worst moment is another: there is "
         "no unit before or after. List the moments."),
        (states + 2 * total + total / ranks, "That is for the whole model as one unit. How many "
         "bytes has a unit here?"),
    ]  # fmt: skip
    for value, hint in known:
        if math.isclose(said, value, rel_tol=0.01):
            return hint
    return (
        "Add up: the states of the shard, the gradient shards so far, and for one unit at its "
        "backward the parameters, the gradients, and the buffers of its neighbours."
    )

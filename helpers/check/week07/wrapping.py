"""Exercise of week 7: choose the blocks per unit of `fully_shard`, and predict the peak memory."""

import math
from functools import cache, partial

import torch

from helpers.check import elsewhere
from helpers.check.answers import is_number, short
from helpers.check.exercise import Exercise
from helpers.check.verdict import NotRight
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.fully_shard import FullyShard
from helpers.parallel.libraries.wrapping import groups_of

BLOCKS = 6
CONFIG = GPTConfig(vocab=8, context=2, width=48, layers=BLOCKS, heads=2)
STEPS = 3  # to measure
PATIENCE = 300.0  # seconds: on a busy machine, a rank imports for a minute
NEAR = 0.05  # of the measured peak: activations, norms and the embedding are not in the formula
UNIT, PEAK = "blocks in a unit", "bytes at the peak"


def budgets():
    """Each budget is between the peak of the blocks per unit that fit, and the next larger peak."""
    block = 4 * sum(p.numel() for p in CONFIG.build(device="meta").blocks["0"].parameters())
    made = []
    for ranks, fits, larger in ((3, 1, 2), (2, 2, 3), (3, 3, 6)):
        low, high = (of_units(BLOCKS // k, k * block, ranks) for k in (fits, larger))
        budget = round((low + high) / 2)
        words = f"{BLOCKS} blocks of {block:,} bytes on {ranks} ranks, budget {budget:,} bytes"
        made.append((words, (BLOCKS, block, ranks, budget)))
    return made


@cache
def measured(ranks: int, per_unit: int) -> int:
    """The largest peak of a step on a rank with this many blocks per unit, in bytes."""
    asked = {"per_unit": per_unit, "timeout": PATIENCE}
    return max(elsewhere.here(peak_of_rank, ranks, None, asked))


def peak_of_rank(worker, solve, per_unit: int) -> int:
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    trained = FullyShard(CONFIG, 0, mesh, wrap=groups_of(per_unit))
    step = partial(trained.step, random_batch(worker.rank, 1, 2, CONFIG.vocab))
    step()  # makes the optimizer's state
    # the least of several steps: a buffer that is released late would add to one of them
    return min(memory_of(step, trained.model, trained.optimizer).peak for _ in range(STEPS))


def play_wrapping(solve, *arguments) -> dict:
    """The peak first: it is what a mistake shows in."""
    answer = solve(*arguments)
    if not isinstance(answer, tuple | list) or len(answer) != 2 or not all(map(is_number, answer)):
        return {"returned": short(answer)}
    return {"returned": "two numbers", PEAK: answer[1], UNIT: answer[0]}


def judge_wrapping(trace, right, blocks, block_bytes, ranks, budget):
    """Measure with the student's units: the prediction is for them."""
    per_unit, said = trace[UNIT], trace[PEAK]
    if not (per_unit >= 1 and blocks % per_unit == 0):  # NaN neither
        words = f"The units are equal: the number must divide {blocks} and be at least 1."
        raise NotRight(f"{per_unit} blocks in a unit", words)
    held = measured(ranks, int(per_unit))
    finding = f"{per_unit} blocks in a unit; you said {said:,.0f} bytes, and a rank held {held:,}"
    if not math.isclose(said, held, rel_tol=NEAR):
        raise NotRight(finding)
    if held > budget:
        raise NotRight(finding, OVER)
    if per_unit != right[UNIT]:
        raise NotRight(finding, LARGER)


def of_units(u: int, b: float, n: int) -> float:
    """Bytes at the peak: u equal units of b bytes on n ranks, with AdamW."""
    states = 3 * u * b / n
    if u == 1:  # the gradients' buffer, gloo's copy of it, and the shard that arrives
        return states + 2 * b + b / n
    if u == 2:  # parameters, gradients, the other unit's buffer and its shard
        return states + 3 * b + b / n
    # parameters, gradients, the next unit's gather, the last unit's reduce-scatter; the gradient
    # shards of all units but this one and the first
    return states + 4 * b + (u - 2) * b / n


def choose(blocks, block_bytes, ranks, budget, peak=of_units):
    peaks = {k: peak(blocks // k, k * block_bytes, ranks) for k in range(1, blocks + 1)
             if blocks % k == 0}  # fmt: skip
    per_unit = max((k for k, held in peaks.items() if held <= budget), default=1)
    return per_unit, peaks[per_unit]


def with_peak(peak):
    """The right choice for a wrong peak."""
    return partial(choose, peak=peak)


def smallest(blocks, block_bytes, *others):
    return 1, of_units(blocks, block_bytes, others[0])


def buffers(one: float, two: float, more: float):
    """Other multiples of a unit, for one unit, for two and for more."""
    right = {1: 2, 2: 3}
    wrong = {1: one, 2: two}
    return with_peak(lambda u, b, n: of_units(u, b, n) + (wrong.get(u, more) - right.get(u, 4)) * b)


def largest(blocks, block_bytes, *others):
    return blocks, of_units(1, blocks * block_bytes, others[0])


OVER = "Your prediction is right, but it is above the budget."
LARGER = (
    "It fits, but a larger unit fits too. Larger units need fewer messages. Try every number that "
    "divides the blocks."
)
choose_wrapping = Exercise(
    right=choose,
    play=play_wrapping,
    cases=budgets,
    close=0.01,
    free=(PEAK, UNIT),
    rule=judge_wrapping,
    slips=(
        (with_peak(lambda u, b, n: of_units(u, b, n) / 4), "Return bytes. That is how many numbers "
         "there are."),
        (with_peak(lambda u, b, n: of_units(u, b, n) - 2 * u * b / n),
         with_peak(lambda u, b, n: of_units(u, b, n) - u * b / n), "AdamW keeps two averages for "
         "each parameter of the shard."),
        (with_peak(lambda u, b, n: of_units(u, b, n) + 2 * u * b / n), "The averages have the "
         "dtype of the parameters: they are not twice as large."),
        (with_peak(lambda u, b, n: 4 * u * b / n + b), "That is the formula of week 6: shards and "
         "one gathered unit. What else does the backward hold? Look at the moments in the figure."),
        (with_peak(lambda u, b, n: 3 * u * b / n + b),
         with_peak(lambda u, b, n: 3 * u * b / n + 2 * b), "Shards and one gathered unit: that is "
         "the forward. Which moment of the backward has the most?"),
        (with_peak(lambda u, b, n: 4 * u * b / n), "That is what the rank holds between steps. "
         "What comes on top during a step?"),
        (with_peak(lambda u, b, n: of_units(u, b, n) + 3 * u * b * (1 - 1 / n)), "The states are "
         "sharded: which part of them has a rank?"),
        (with_peak(lambda u, b, n: of_units(u, b, n) + u * b / n),
         with_peak(lambda u, b, n: 4 * u * b / n + min(u + 1, 4) * b), "Not all gradient shards "
         "are there at this moment: the units that are still to come have none."),
        (with_peak(lambda u, b, n: 3 * u * b / n + min(u + 1, 4) * b), "The gradient shards of the "
         "units that were reduced already are missing."),
        (buffers(2, 2, 2), "Parameters and gradients of one unit. Which buffers are there too: for "
         "a gather, for a reduce-scatter?"),
        (buffers(2, 3, 3), buffers(1, 2, 3), buffers(3, 3, 3), "One buffer is missing: at the "
         "backward of a unit the next unit is fetched, and the last unit's gradients are still "
         "being sent."),
        (buffers(4, 4, 4), with_peak(lambda u, b, n: 3 * u * b / n + 4 * b + max(u - 2, 0) * b / n),
         "With one or two units the worst moment is another: there is no unit before or after. "
         "List the moments."),
        (with_peak(lambda u, b, n: 4 * u * b / n + 4 * b), "Four units come on top only where "
         "there are three units or more, and not all gradient shards are there then. List the "
         "moments."),
        (with_peak(lambda u, b, n: of_units(1, u * b, n)), "That is for the whole model as one "
         "unit. How many bytes has a unit here?"),
        (lambda blocks, *given: (blocks // choose(blocks, *given)[0], choose(blocks, *given)[1]),
         "Return the blocks in a unit, not the number of units."),
        (smallest, LARGER),
        (largest, OVER),
        (lambda *given: choose(*given)[::-1], lambda *given: choose(*given)[0],
         "Return two numbers: the blocks in a unit first, then the peak in bytes."),
    ),
    last="Add up: the states of the shard, the gradient shards so far, and for one unit at its "
    "backward the parameters, the gradients, and the buffers of its neighbours.",
)  # fmt: skip

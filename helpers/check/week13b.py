"""Exercises of week 13, second part: strategies of a chain, a pipeline's stages, a better plan."""

import itertools
from dataclasses import replace
from functools import cache

from helpers.check.answers import short
from helpers.check.exercise import Edit, Exercise
from helpers.check.number import Number
from helpers.comm.layout import Layout
from helpers.models.shape import GPTShape
from helpers.planner.plan import plan
from helpers.simulate.plan import Plan
from helpers.simulate.step_time import step_time
from helpers.simulate.topology import DGX_A100

# cheapest_chain


def least_chain(costs, resharding):
    best = [(cost, [way]) for way, cost in enumerate(costs[0])]  # by the last operator's strategy
    for own, between in zip(costs[1:], resharding, strict=True):
        best = [
            min((best[a][0] + between[a][b] + own[b], [*best[a][1], b]) for a in range(len(best)))
            for b in range(len(own))
        ]
    return min(best)[1]


def near_sighted(costs, resharding):
    chosen = [costs[0].index(min(costs[0]))]
    for own, between in zip(costs[1:], resharding, strict=True):
        chosen.append(min(range(len(own)), key=lambda b: between[chosen[-1]][b] + own[b]))
    return chosen


def own_cheapest(costs, resharding):
    return [own.index(min(own)) for own in costs]


def one_for_all(costs, resharding):
    def total(way):
        return sum(own[way] for own in costs) + sum(between[way][way] for between in resharding)

    return [min(range(len(costs[0])), key=total)] * len(costs)


def drawn_chain(random):
    length, ways = random.randint(3, 6), random.randint(2, 4)
    costs = [[random.random() for _ in range(ways)] for _ in range(length)]
    between = [[[random.random() for _ in range(ways)] for _ in range(ways)]
               for _ in range(length - 1)]  # fmt: skip
    return f"{length} operators", (costs, between)


STEP = "best[a][0] + between[a][b] + own[b]"
EXTEND = (
    "For each strategy of the last operator, keep the cheapest chain that ends there. The next "
    "operator extends these chains."
)
cheapest_chain = Exercise(
    right=least_chain,
    draw=drawn_chain,
    cases=(  # costs, resharding
        ("one operator", ([[3.0, 1.0, 2.0]], [])),
        ("two operators", ([[1.0, 2.0], [3.0, 1.5]], [[[0.0, 4.0], [1.0, 0.2]]])),
        (
            "three operators, dear to reshard",
            ([[1.0, 2.0], [5.0, 1.0], [1.0, 3.0]],
             [[[0.0, 6.0], [7.0, 0.5]], [[0.3, 8.0], [9.0, 0.0]]]),
        ),
        (
            "three operators, the middle one differs",
            ([[1.0, 6.0, 5.0], [6.0, 5.0, 1.0], [7.0, 1.0, 5.0]],
             [[[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]],
              [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]]),
        ),
        (
            "four operators, a cheap first step into a dead end",
            ([[1.0, 1.2, 4.0], [2.0, 2.5, 1.0], [9.0, 1.0, 6.0], [4.0, 0.5, 2.0]],
             [[[0.0, 3.0, 0.9], [2.0, 0.1, 6.0], [0.5, 0.4, 0.0]],
              [[0.2, 9.0, 4.0], [3.0, 0.4, 8.0], [6.0, 7.0, 0.1]],
              [[0.0, 5.0, 1.0], [1.0, 2.0, 3.0], [4.0, 0.7, 0.6]]]),
        ),
    ),
    slips=(
        (own_cheapest, "Each operator has its own cheapest strategy here. What does it cost to "
         "bring the tensor from one to the next?"),
        (near_sighted, "Each choice looks one operator back only. A dearer strategy now may save a "
         "resharding later: keep the best chain for each strategy of the last operator."),
        (one_for_all, "All operators have one strategy here. They may differ."),
        (Edit(STEP, "best[a][0] + between[b][a] + own[b]"), "resharding[i][a][b] leads from "
         "strategy a of operator i to strategy b of operator i + 1."),
        (Edit(STEP, "best[a][0] + between[a][b]"), "The operators' own costs count, too."),
        (Edit("return min(best)[1]", "return max(best)[1]"), "This is the dearest of the best "
         "chains."),
        (Edit("return min(best)[1]", "return best[0][1]"), "The last operator may have any of its "
         "strategies."),
        (Edit("return min(best)[1]", "return min(best)[0]"), "Return the strategies, not their "
         "cost."),
        (Edit("return min(best)[1]", "return min(best)[1][::-1]"), "The first operator's strategy "
         "comes first."),
    ),
    about={"returned": EXTEND},  # a strategy is no number that is too small
    last=EXTEND,
)  # fmt: skip

# pipeline_plan


def least_pipeline(seconds, layers, devices, micro_batches):
    @cache
    def ways(start, left):  # (sum, slowest) of the stages from this layer on
        if start == layers:
            return {(0.0, 0.0)} if left == 0 else set()
        return {
            (seconds[start, stop, size] + total, max(seconds[start, stop, size], slowest))
            for stop in range(start + 1, layers + 1)
            for size in range(1, left + 1)
            if (start, stop, size) in seconds
            for total, slowest in ways(stop, left - size)
        }

    return min(total + (micro_batches - 1) * slowest for total, slowest in ways(0, devices))


def table(layers: list[float], devices: int, lost: float) -> dict:
    """(start, stop, devices) -> seconds; a share `lost` of each further device does not help."""
    found = {}
    for start, stop in itertools.combinations(range(len(layers) + 1), 2):
        for size in (1, 2, 4):
            if size <= devices:
                found[start, stop, size] = sum(layers[start:stop]) / (1 + (1 - lost) * (size - 1))
    return found


def drawn_layers(random):
    layers = [random.randint(1, 20) / 4 for _ in range(random.randint(3, 5))]
    devices = random.randint(2, 4)
    stages = table(layers, devices, random.random() / 2)
    return f"{len(layers)} layers", (stages, len(layers), devices, random.randint(1, 9))


RESULT = "total + (micro_batches - 1) * slowest"
pipeline_plan = Number(
    right=least_pipeline,
    unit="seconds",
    close=1e-9,
    draw=drawn_layers,
    cases=(  # seconds, layers, devices, micro-batches
        ("equal layers, 2 devices", (table([1.0] * 4, 2, 0.1), 4, 2, 8)),
        ("a slow last layer, 4 devices", (table([1.0, 1.0, 1.0, 3.0], 4, 0.2), 4, 4, 16)),
        ("slow layers at both ends", (table([2.0, 1.0, 1.0, 1.0, 4.0], 4, 0.4), 5, 4, 4)),
        ("equal layers, a second device helps little", (table([1.0] * 4, 2, 0.5), 4, 2, 8)),
        ("a second device only costs messages", ({(0, 1, 1): 1.0, (0, 1, 2): 1.5}, 1, 2, 3)),
        ("one micro-batch", (table([1.0, 2.0, 1.0], 4, 0.3), 3, 4, 1)),
        ("no stage has 2 devices", ({
            key: value for key, value in table([1.0, 2.0, 3.0], 3, 0.1).items() if key[2] == 1
        }, 3, 3, 6)),
        ("a slow first layer, 3 devices", (table([5.0, 4.0, 4.0], 3, 0.4), 3, 3, 6)),
    ),
    slips=(
        (Edit(RESULT, "micro_batches * slowest"), "The first micro-batch passes all stages, also "
         "the quick ones."),
        (Edit(RESULT, "total + micro_batches * slowest"), "The sum has the slowest stage's first "
         "micro-batch already."),
        (Edit(RESULT, "total"), "The slowest stage sets the pace for all micro-batches."),
        (Edit(RESULT, "micro_batches * total"), "The stages work at the same time on different "
         "micro-batches."),
        (Edit("ways(stop, left - size)", "sorted(ways(stop, left - size), key=lambda way: "
              "way[0] + (micro_batches - 1) * way[1])[:1]"), "A slow first stage makes the slowest "
         "of the rest not matter: the best T of the rest is not enough."),
        (Edit("if left == 0 else set()", "if True else set()"), "All devices are used; a plan may "
         "not leave one idle."),
        (Edit("for size in range(1, left + 1)", "for size in range(1, min(1, left) + 1)"), "A "
         "stage may run on several devices."),
        (Edit("for stop in range(start + 1, layers + 1)", "for stop in (start + 1, layers)"), "A "
         "stage may have any number of layers in a row."),
    ),
    about={"raised": "Some submeshes are not in the table: a stage cannot run there."},
    last="Try each first stage, with each number of devices, and each way to run the rest. Then "
    "T = the sum of the stages, plus (micro-batches - 1) times the slowest.",
)  # fmt: skip

# better_plan

MODEL = GPTShape(
    vocab=51_200, context=2048, width=8192, layers=48, heads=64, norm="layer", mlp="gelu",
    positions="learned", bias=True,
)  # fmt: skip
CLUSTER = DGX_A100.of(64)
SEQUENCES, MEMORY = 512, 80e9


@cache
def planner_seconds() -> float:
    """Of the planner's own choice for this model, cluster, batch and memory."""
    return plan(MODEL, CLUSTER, SEQUENCES, recompute="none").within(MEMORY).seconds


def hidden_gathers():
    like = {"sequences": 512, "tokens": 2048, "zero": 3}
    return Plan(layout=Layout(dp=64), micro=2, overlap=True, **like)


def contest():
    """The planner's seconds are an argument."""
    return [("39 billion parameters on 64 GPUs", (planner_seconds(),))]


def planned(solve) -> dict | str:
    """The fields of the student's plan. A function cannot travel: so its schedule is made here."""
    given = solve()
    return vars(replace(given, schedule=given.made)) if isinstance(given, Plan) else short(given)


def play_contest(ask, seconds) -> dict:
    fields = ask()
    if isinstance(fields, str):
        return {"returned": fields}
    made = fields["schedule"]
    given = Plan(**fields | {"schedule": made and (lambda p, m: made)})
    step = step_time(MODEL, given, CLUSTER)
    return {
        "returned": "a Plan",
        "sequences": given.sequences,
        "tokens": given.tokens,
        "bytes of a gradient": given.gradient_bytes,
        "fits": step.peak_bytes <= MEMORY,
        "faster": step.seconds < 0.99 * seconds,
    }


def words_of(facet, found, right, seconds):
    if facet == "returned":
        return f"it returned {found}, and no Plan"
    if facet == "fits":
        return "the plan needs more than 80 GB on a GPU"
    if facet == "faster":
        return f"the plan is not 1 % faster than the planner's {seconds:.2f} seconds"
    return f"the contest is for {right:,} {facet}, your plan has {found:,}"


better_plan = Exercise(
    right=hidden_gathers,
    asks=planned,
    play=play_contest,
    cases=contest,
    say=words_of,
    slips=(
        (Edit("overlap=True", "overlap=False"),
         "No other number of chunks helps by 1 %. Which options does the planner never choose?"),
        (Edit("micro=2", "micro=4"), "More sequences in a micro-batch keep more "
         "activations. What else takes memory away: tp, more stages, ZeRO?"),
    ),
    about={"sequences": "Each plan trains the same batch.", "tokens": "Each sequence is as long.",
           "gradient": "The planner's plans send two bytes for each gradient, too."},
    last="Read the fields of Plan: chunks, micro, zero, schedule, overlap.",
)  # fmt: skip

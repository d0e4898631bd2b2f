"""Exercises of week 14, second part: the dollars of a training, a policy for spot instances."""

import math  # noqa: F401, for the slips
from functools import cache

from helpers.check import hidden
from helpers.check.answers import short
from helpers.check.exercise import Edit, Exercise, among
from helpers.check.number import Number
from helpers.check.verdict import NotRight
from helpers.resilience import spot
from helpers.resilience.interval import goodput, young
from helpers.resilience.spot import ON_DEMAND, SPOT, WAIT, Job

# dollars_of_training


def dollars_with_faults(params, tokens, gpus, rate, price, of_one, write, restart):
    between = of_one / gpus
    hours = 6 * params * tokens / rate / 3600
    return price * hours / goodput(young(write, between), write, between, restart)


WHOLE = "goodput(young(write, between), write, between, restart)"
dollars_of_training = Number(
    right=dollars_with_faults,
    unit="dollars",
    close=1e-9,
    draw=among(params=(1e9, 4e11), tokens=(1e12, 2e13), gpus=(256, 65_536), rate=(2e14, 6e14),
               price=(1, 5), of_one=(1e8, 4.5e8), write=(1, 120), restart=(1, 600)),
    cases=(  # params, tokens, gpus, rate, price, of_one, write, restart
        ("37 billion parameters, 2,048 GPUs", (37e9, 14.8e12, 2048, 330e12, 2.0, 1.8e8, 60, 600)),
        ("the same on 65,536 GPUs", (37e9, 14.8e12, 65_536, 330e12, 2.0, 1.8e8, 60, 600)),
        ("the same, an instant restart", (37e9, 14.8e12, 65_536, 330e12, 2.0, 1.8e8, 60, 0)),
        ("one billion parameters, 8 GPUs", (1e9, 20e9, 8, 400e12, 3.5, 1.8e8, 10, 60)),
    ),
    slips=(
        (Edit(f" / {WHOLE}", ""), "You also pay for the time that faults and checkpoints cost."),
        (Edit(f"/ {WHOLE}", f"* {WHOLE}"), "With a lower goodput, you pay longer, not shorter."),
        (Edit("of_one / gpus", "of_one"), "The time between faults is that of one GPU. How often "
         "does any of them fail?"),
        (Edit("6 * params", "2 * params"), "2 FLOPs for each token and parameter are the forward "
         "alone: the backward computes twice as much."),
        (Edit("6 * params", "8 * params"), "8 includes a recomputed forward, which the given rate "
         "does not count."),
        (Edit("hours = ", "hours = gpus * "), "All GPUs together need these hours: with twice the "
         "GPUs, each works half as long."),
        (Edit(" / 3600", ""), "The price is for an hour, and the rate for a second."),
        (Edit("young(write, between)", "math.sqrt(write * between)"), "Young's interval is the "
         "root of 2 C M."),
    ),
    last="Hours of all GPUs, 6 · parameters · tokens over their rate, divided by the goodput at "
    "Young's interval, times the price.",
)  # fmt: skip

# spot_policy

PRICES = {SPOT: 0.3, ON_DEMAND: 1.0}
TRACES = 24
CLUSTERS = (  # work, deadline, start, share, life: ticks
    ("spot is there 88 % of the time", (120, 180, 3, 0.88, 60)),
    ("spot is there 45 % of the time", (120, 180, 3, 0.45, 20)),
    ("a tight deadline", (120, 132, 3, 0.7, 30)),
)
CHOICES = (WAIT, SPOT, ON_DEMAND)
MORE = 1.25  # a policy may cost so much of the better one of two usual policies


def seeds():
    """The first seed of the traces."""
    return [(words, (*sizes, hidden.seed(0))) for words, sizes in CLUSTERS]


def choices(solve, job, traces) -> tuple[str, list]:
    """Run a policy on these traces: the first choice that is refused, and all choices."""

    def choose(now):
        choice = solve(now)
        if choice not in CHOICES or (choice == SPOT and not now.spot):
            odd.append(f"{short(choice)} in tick {now.tick}, with now.spot = {now.spot}")
            return WAIT
        return CHOICES[CHOICES.index(choice)]  # a plain text, whatever equals it

    odd = []
    runs = [spot.run(choose, job, trace, PRICES).choices for trace in traces]
    return odd[0] if odd else "no choice", runs


@cache
def traces_of(job, share, life, first) -> tuple[list, float]:
    """Traces, and what the better one of two usual policies costs on all of them."""
    seeds = range(first, first + TRACES)
    traces = [spot.drawn(share, life, job.deadline, seed) for seed in seeds]
    costs = (
        sum(spot.run(policy, job, trace, PRICES).cost for trace in traces)
        for policy in (spot.greedy, spot.uniform_progress)
    )
    return traces, min(costs)


def play_policy(ask, work, deadline, start, share, life, first) -> dict:
    """Run a policy on traces that it has not seen."""
    job = Job(work=work, deadline=deadline, start=start)
    traces, usual = traces_of(job, share, life, first)
    refused, rows = ask(job, traces)
    runs = [
        spot.run(lambda now, rest=rest: next(rest), job, trace, PRICES)
        for rest, trace in zip(map(iter, rows), traces, strict=True)
    ]
    missed, cost = sum(run.finished is None for run in runs), sum(run.cost for run in runs)
    return {"refused": refused, "deadlines missed": missed, "cost": cost / usual}


def cheap_enough(trace, right, *arguments):
    if trace["cost"] > MORE:
        raise NotRight(
            f"your policy costs {100 * (trace['cost'] - 1):.0f} % more than the better one of "
            "`greedy` and `uniform_progress`",
            "Is there a tick in which it pays for on demand although it could still wait? Or does "
            "it start instances again and again?",
        )


def never_late(now):
    if now.using == ON_DEMAND or now.last_call:
        return ON_DEMAND
    return SPOT if now.spot else WAIT


spot_policy = Exercise(
    right=never_late,
    asks=choices,
    play=play_policy,
    cases=seeds,
    free=("cost",),
    about={"refused": 'Return "spot", "on demand" or "wait"; "spot" only where now.spot is true.'},
    rule=cheap_enough,
    slips=(
        (Edit("or now.last_call", ""), "Nothing makes this policy use on demand in time. "
         "`now.last_call` is true when it must."),
        (Edit("now.using == ON_DEMAND or now.last_call", "now.tick >= now.job.deadline - "
              "now.job.work + now.done"), "A start takes ticks, too, in which nothing is trained."),
    ),
    last="Spot if there is one, else wait; on demand from the last call on.",
)  # fmt: skip

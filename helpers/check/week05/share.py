"""Exercise of week 5: the bubble's formula, over the whole step."""

import math

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.plans.schedules import bubble, interleaved, one_f_one_b, timeline

SIZES = [(4, 8, 1), (8, 32, 1), (4, 8, 2), (3, 6, 4), (2, 1, 1), (1, 4, 1), (5, 7, 1)]  # p, m, v


def bubble_share(fn) -> Verdict:
    """Check `fn(ranks, micro_batches, chunks)`: the idle share of a whole step of 1F1B."""
    cases = [
        (f"{p} ranks, {m} micro-batches, {v} stage{'s' * (v > 1)} a rank", (p, m, v), {})
        for p, m, v in (*SIZES, *hidden.more(drawn))
    ]
    return examine_here("bubble_share", fn, cases, judge_share)


def drawn(random):
    ranks = random.randint(2, 7)
    return ranks, ranks * random.randint(1, 6), random.randint(1, 4)


def measured_share(ranks: int, micro_batches: int, chunks: int) -> float:
    """Counted on the schedule's own timeline."""
    if chunks == 1:
        schedule = one_f_one_b(ranks, micro_batches)
    else:
        schedule = interleaved(ranks, micro_batches, chunks)
    return bubble(timeline(schedule)).over_total


def judge_share(answer, ranks, micro_batches, chunks):
    if not is_number(answer):
        raise NotRight(f"returned {answer!r}", "Return one number between 0 and 1.")
    right = measured_share(ranks, micro_batches, chunks)
    if not math.isclose(answer, right, rel_tol=1e-9, abs_tol=1e-12):
        raise NotRight(
            f"you said {answer:.6g}; the timeline idles {right:.6g} of the step",
            hint_share(answer, right, ranks, micro_batches, chunks),
        )


def hint_share(answer, right, p, m, v) -> str:
    """Which common mistake gives this answer?"""
    if p == 1:
        return "One rank alone never waits. Which factor is zero for one rank?"
    known = [
        ((p - 1) / (v * m), "That is idle time over *work*. The question is over the whole step."),
        (1 - right, "That is the busy share. How large is the rest?"),
        (100 * right, "Return a share between 0 and 1, not a percentage."),
        (p / (m + p), "How many micro-batches' time does rank 0 wait? Draw 2 ranks."),
        ((p - 1) / (m + p), "The numerator is right. The whole step is work and idle time: add."),
        ((p - 1) / m / (1 + (p - 1)), "The whole step: m units of work, and which idle units?"),
        ((p - 1) / (m + p - 1), "With v stages a rank, each wait is for a stage v times smaller."),
        (
            (p - 1) / (m + p - 1) / v,
            "The idle time is v times smaller, but then the whole step is shorter, too. "
            "Divide first, then form the share.",
        ),
        ((p - 1) / m, "Over work, and v is missing. Begin with the idle time of one rank."),
        (v * (p - 1) / (m + v * (p - 1)), "Upside down: do smaller stages wait longer?"),
        (m / (m + p - 1), "That is the busy share. How large is the rest?"),
        ((p - 1) / v, "That is the idle time, in units of a micro-batch. What share is it?"),
        (
            (p - 1) / (v * m - p + 1) if v * m != p - 1 else math.inf,
            "You went from the share of the step to the share of the work: turn it round.",
        ),
    ]
    for value, hint in known:
        if math.isclose(answer, value, rel_tol=1e-9):
            return hint
    return (
        "Take F + B of one micro-batch on one rank as the unit. How many units does a rank work? "
        "How many does rank 0 wait? The share is the wait over their sum."
    )

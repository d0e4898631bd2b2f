"""Exercise of week 5: the order of 1F1B, as data."""

import re

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict
from helpers.plans.schedules import (
    Action,
    Costs,
    Schedule,
    ScheduleError,
    bubble,
    check,
    gpipe,
    in_flight,
    one_f_one_b,
    timeline,
)

SIZES = [(4, 8), (2, 3), (3, 3), (1, 2), (4, 2)]  # ranks, micro-batches
COSTS = Costs(forward=1.0, backward=2.0)
CELL = re.compile(r"[FB]-?[0-9]+")
SHAPE = 'Return a list for each rank, in rank order, of cells: ["F0", "F1", "B0", …].'
WARM_UP = (
    "The first micro-batch's gradient reaches rank 0 last. Which rank needs the most forwards "
    "before its first backward, and which rank needs none?"
)


def order_1f1b(fn) -> Verdict:
    """Check `fn(ranks, micro_batches)`: the cells of each rank, as 1F1B with a flush runs them."""
    cases = [
        (f"{p} ranks, {m} micro-batches", (p, m), {}) for p, m in (*SIZES, *hidden.more(drawn))
    ]
    return examine_here("order_1f1b", fn, cases, judge_order)


def drawn(random):
    return random.randint(2, 6), random.randint(1, 11)


def judge_order(answer, ranks, micro_batches):
    schedule = read(answer, ranks, micro_batches)
    listing = "\n".join(f"  rank {r}: {' '.join(row)}" for r, row in enumerate(answer))
    try:
        check(schedule)
    except ScheduleError as error:
        raise NotRight(f"{error}\n{listing}", hint_error(str(error), schedule)) from None
    wanted = one_f_one_b(ranks, micro_batches)
    kept, allowed = in_flight(schedule), in_flight(wanted)
    too_many = next((r for r in range(ranks) if kept[r] > allowed[r]), None)
    if too_many is not None:
        raise NotRight(
            f"it runs, but rank {too_many} keeps {kept[too_many]} micro-batches, and "
            f"{allowed[too_many]} {'are' if allowed[too_many] > 1 else 'is'} enough\n{listing}",
            hint_memory(schedule, kept),
        )
    mine, best = bubble(timeline(schedule, COSTS)), bubble(timeline(wanted, COSTS))
    if mine.makespan > best.makespan + 1e-9:
        raise NotRight(
            f"it runs, but the step takes {mine.makespan:g} units where 1F1B takes "
            f"{best.makespan:g} (a forward takes 1, a backward 2)\n{listing}",
            hint_time(schedule, kept, allowed),
        )


def read(answer, ranks: int, micro_batches: int) -> Schedule:
    """The answer as a Schedule; NotRight if it has another shape."""
    if not isinstance(answer, list | tuple) or isinstance(answer, str):
        raise NotRight(f"returned {short(answer)}", SHAPE)
    if len(answer) != ranks:
        raise NotRight(f"returned {len(answer)} lists for {ranks} ranks", SHAPE)
    orders = []
    for rank, row in enumerate(answer):
        if not isinstance(row, list | tuple):
            raise NotRight(f"rank {rank}: {short(row)}", SHAPE)
        order = []
        for cell in row:
            if not isinstance(cell, str) or not CELL.fullmatch(cell):
                raise NotRight(
                    f"rank {rank} has the cell {short(cell)}",
                    "A cell is a text: F or B, and the number of the micro-batch. Only the order "
                    "counts: a rank that waits has no cell.",
                )
            micro = int(cell[1:])
            if not 0 <= micro < micro_batches:
                raise NotRight(
                    f"rank {rank} has the cell {cell!r}; the micro-batches are 0 to "
                    f"{micro_batches - 1}",
                    "How many warm-up forwards are possible with so few micro-batches?"
                    if micro_batches < ranks
                    else "At which number does each phase begin, and how many cells has it?",
                )
            order.append(Action(cell[0], rank, micro))
        orders.append(tuple(order))
    return Schedule("yours", tuple(range(ranks)), micro_batches, tuple(orders))


def short(value) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:59] + "…"


def warm_ups(schedule: Schedule) -> list[int]:
    """For each rank, the forwards before its first backward."""
    return [
        next((k for k, action in enumerate(order) if action.kind == "B"), len(order))
        for order in schedule.orders
    ]


def hint_error(error: str, schedule: Schedule) -> str:
    """Why it cannot run."""
    if error.startswith("deadlock"):
        warm = warm_ups(schedule)
        if warm[0] < warm[-1]:
            return WARM_UP
        return (
            "These ranks wait for each other in a circle. In which order does the rank before "
            "send the micro-batches? Two ranks must not expect different ones."
        )
    if "more than once" in error:
        return "Does a phase begin with a micro-batch that the phase before has computed already?"
    if "never computes B" in error:
        return "Are the backwards of the warm-up's micro-batches left over at the end?"
    if "never computes F" in error:
        return "Count the forwards of the warm-up and of the phase of pairs: together they are m."
    return "A backward needs the activations that its own forward has kept."


def hint_memory(schedule: Schedule, kept) -> str:
    if schedule.orders == gpipe(schedule.ranks, schedule.micro_batches).orders:
        return (
            "That is GPipe: all forwards first. When may a rank compute its first backward, and "
            "what does it free?"
        )
    if len(set(kept)) == 1:
        return (
            "Every rank has the same warm-up. A rank near the end gets its first gradient sooner: "
            "on which number must the warm-up depend?"
        )
    return (
        "The warm-up is too long. In the phase of pairs a rank computes one more forward before "
        "its first backward: count it, too."
    )


def hint_time(schedule: Schedule, kept, allowed) -> str:
    if max(kept) == 1:
        return "One micro-batch at a time: while it is on another rank, this rank idles."
    short_of = {a - k for k, a in zip(kept, allowed, strict=True)}
    if max(short_of) == 1:
        return (
            "The warm-up is one forward short: a rank waits for a gradient although it could "
            "compute another forward. How many ranks are after rank r?"
        )
    if max(short_of) > 1:
        return (
            "The warm-up is too short. Until the first gradient is back on rank r, the micro-batch "
            "goes through all later ranks. How many are they?"
        )
    return "After the warm-up: one forward, one backward, in turn. Which comes first in a pair?"

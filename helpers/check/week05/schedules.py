"""Exercises of week 5 on schedules: the order of 1F1B, its bubble, messages posted together."""

import re
from collections import Counter
from itertools import chain

from helpers.check.answers import short
from helpers.check.exercise import Edit, Exercise
from helpers.check.number import Number
from helpers.check.verdict import NotRight
from helpers.plans.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    SEND,
    Action,
    Costs,
    Message,
    Schedule,
    ScheduleError,
    bubble,
    check,
    gpipe,
    in_flight,
    interleaved,
    one_f_one_b,
    timeline,
    with_messages,
    zero_bubble_h1,
)
from helpers.plans.schedules.messages import waiting

# order_1f1b

CELL = re.compile(r"[FB]-?[0-9]+")


def sizes(p: int, m: int):
    return f"{p} ranks, {m} micro-batches", (p, m)


def order(p, m):
    """1F1B: the warm-up of rank r, then pairs, then the backwards that are left."""
    rows = []
    for r in range(p):
        warm = min(p - 1 - r, m)
        row = [f"F{k}" for k in range(warm)]
        for k in range(m - warm):
            row += [f"F{warm + k}", f"B{k}"]
        row += [f"B{k}" for k in range(m - warm, m)]
        rows.append(row)
    return rows


def run_order(solve, ranks, micro_batches) -> dict:
    """What the order does: a rank may keep fewer micro-batches, and may not take longer."""
    answer = solve(ranks, micro_batches)
    try:
        schedule = read(answer, ranks, micro_batches)
        check(schedule)
    except (NotRight, ScheduleError) as error:
        return {"cells": answer, "runs": str(error), "kept": (), "makespan": 0.0}
    span = bubble(timeline(schedule, Costs(forward=1.0, backward=2.0))).makespan
    return {"cells": answer, "runs": "", "kept": in_flight(schedule), "makespan": span}


def read(answer, ranks: int, micro_batches: int) -> Schedule:
    """Return the answer as a Schedule; NotRight if it has another shape."""
    if not isinstance(answer, list | tuple) or len(answer) != ranks:
        raise NotRight(f"it is {short(answer)}, and not {ranks} lists")
    orders = []
    for rank, row in enumerate(answer):
        if not isinstance(row, list | tuple):
            raise NotRight(f"rank {rank} has no list: {short(row)}")
        for cell in row:
            if not isinstance(cell, str) or not CELL.fullmatch(cell):
                raise NotRight(f"rank {rank} has the cell {short(cell)}")
            if not 0 <= int(cell[1:]) < micro_batches:
                last = micro_batches - 1
                words = f"rank {rank} has the cell {cell!r}; the micro-batches are 0 to {last}"
                raise NotRight(words)
        orders.append(tuple(Action(cell[0], rank, int(cell[1:])) for cell in row))
    return Schedule("yours", tuple(range(ranks)), micro_batches, tuple(orders))


def listing(answer) -> str:
    if not isinstance(answer, list | tuple) or not all(isinstance(r, list | tuple) for r in answer):
        return ""
    return "".join(f"\n  rank {r}: {' '.join(map(str, row))}" for r, row in enumerate(answer))


class Orders(Exercise):
    def problem(self, trace, case):
        found = super().problem(trace, case)
        if found or trace["runs"]:
            return found
        right, cells = self.expected(case), listing(trace["cells"])
        for rank, (kept, enough) in enumerate(zip(trace["kept"], right["kept"], strict=True)):
            if kept > enough:
                words = f"it runs, but rank {rank} keeps {kept} micro-batches, and {enough} "
                words += f"{'are' if enough > 1 else 'is'} enough{cells}"
                return "kept", NotRight(words)
        if trace["makespan"] > right["makespan"] + 1e-9:
            words = f"it runs, but the step takes {trace['makespan']:g} units where 1F1B takes "
            words += f"{right['makespan']:g} (a forward takes 1, a backward 2){cells}"
            return "makespan", NotRight(words)
        return None

    def complaint(self, facet, found, right, case):
        return NotRight(found)


WARM, PAIR = "min(p - 1 - r, m)", '[f"F{warm + k}", f"B{k}"]'
order_1f1b = Orders(
    right=order,
    play=run_order,
    free=("cells", "kept", "makespan"),
    say=lambda facet, found, right, p, m: found,
    draw=lambda random: sizes(random.randint(2, 6), random.randint(1, 11)),
    cases=tuple(sizes(*size) for size in ((4, 8), (2, 3), (3, 3), (1, 2), (4, 2))),
    slips=(
        (Edit(WARM, "min(r, m)"), "The first micro-batch's gradient reaches rank 0 last. Which "
         "rank needs the most forwards before its first backward, and which rank needs none?"),
        (Edit(WARM, "min(p - 1, m)"), "Every rank has the same warm-up. A rank near the end gets "
         "its first gradient sooner: on which number must the warm-up depend?"),
        (Edit(WARM, "min(p - r, m)"), Edit(WARM, "min(2 * (p - 1 - r), m)"), "The warm-up is too "
         "long. In the phase of pairs a rank computes one more forward before its first backward: "
         "count it, too."),
        (Edit(WARM, "m"), "That is GPipe: all forwards first. When may a rank compute its first "
         "backward, and what does it free?"),
        (Edit(WARM, "min(max(p - 2 - r, 0), m)"), "The warm-up is one forward short: a rank waits "
         "for a gradient although it could compute another forward. How many ranks are after rank "
         "r?"),
        (Edit(WARM, "0"), "One micro-batch at a time: while it is on another rank, this rank "
         "idles."),
        (Edit(WARM, "min((p - 1 - r) // 2, m)"), Edit(WARM, "min(p - 1 - r, 1, m)"), "The warm-up "
         "is too short. Until the first gradient is back on rank r, the micro-batch goes through "
         "all later ranks. How many are they?"),
        (Edit(PAIR, PAIR + "[::-1]"), "After the warm-up: one forward, one backward, in turn. "
         "Which comes first in a pair?"),
        (Edit("for k in range(m - warm, m)]", "for k in ()]"), "Are the backwards of the warm-up's "
         "micro-batches left over at the end?"),
        (Edit("F{warm + k}", "F{k}"), Edit("F{warm + k}", "F{max(warm - 1, 0) + k}"), "Does a "
         "phase begin with a micro-batch that the phase before has computed already?"),
        (Edit('", f"B{k}"]', '", f"B{m - 1 - k}"]', 'row += [f"B{k}"', 'row += [f"B{m - 1 - k}"'),
         "A backward needs the activations that its own forward has kept. Which micro-batch's are "
         "there first?"),
        (Edit("in range(m - warm, m)]", "in reversed(range(m - warm, m))]"),
         Edit(PAIR, '[f"F{warm + k}", f"B{warm + k}"]', "range(m - warm, m)]", "range(warm)]"),
         "The last rank sends the gradients back in the order of the micro-batches. Which one "
         "arrives here first, and which backward do you run first?"),
        (Edit(WARM, "p - 1 - r"), "How many warm-up forwards are possible with so few "
         "micro-batches?"),
        (Edit("in range(m - warm):", "in range(m - warm - 1):"), "Count the forwards of the "
         "warm-up and of the phase of pairs: together they are m."),
        (Edit("in range(m - warm):", "in range(m):"),
         Edit('[f"F{k}"', '[f"F{k + 1}"', PAIR, '[f"F{warm + k + 1}", f"B{k + 1}"]',
              'row += [f"B{k}"', 'row += [f"B{k + 1}"'), "At which number does each phase begin, "
         "and how many cells has it?"),
        (Edit("rows.append(row)", "rows.append([(cell[0], int(cell[1:])) for cell in row])"),
         Edit("rows.append(row)", "rows.append([None] * r + row)"), "A cell is a text: F or B, and "
         "the number of the micro-batch. Only the order counts: a rank that waits has no cell."),
        (Edit("return rows", "return dict(enumerate(rows))"),
         Edit("rows.append(row)", 'rows.append(" ".join(row))'),
         Edit("return rows", "return [*rows, []]"),
         'Return a list for each rank, in rank order, of cells: ["F0", "F1", "B0", …].'),
    ),
    last="First a warm-up of forwards, as many as ranks come after this one; then pairs of a "
    "forward and a backward; then the backwards that are left. Which phase differs?",
)  # fmt: skip

# bubble_share


def measured_share(ranks: int, micro_batches: int, chunks: int) -> float:
    """Counted on the schedule's own timeline."""
    plain = chunks == 1
    schedule = one_f_one_b if plain else interleaved
    sizes = (ranks, micro_batches) if plain else (ranks, micro_batches, chunks)
    return bubble(timeline(schedule(*sizes))).over_total


def share_case(p: int, m: int, v: int):
    return f"{p} ranks, {m} micro-batches, {v} stage{'s' * (v > 1)} a rank", (p, m, v)


def drawn_share(random):
    ranks = random.randint(2, 7)
    return share_case(ranks, ranks * random.randint(1, 6), random.randint(1, 4))


bubble_share = Number(
    right=measured_share,
    unit="the step, between 0 and 1",
    say=lambda found, right, *_: (
        f"you said {found:.6g}; the timeline idles {right:.6g} of the step"
    ),
    close=1e-9,
    draw=drawn_share,
    cases=tuple(share_case(*size) for size in (
        (4, 8, 1), (8, 32, 1), (4, 8, 2), (3, 6, 4), (2, 1, 1), (1, 4, 1), (5, 7, 1)
    )),
    slips=(
        (lambda p, m, v: (p - 1) / (v * m), "That is idle time over *work*. The question is over "
         "the whole step."),
        (lambda b, g: 1 - b, lambda p, m, v: m / (m + p - 1), "That is the busy share. How large "
         "is the rest?"),
        (lambda b, g: 100 * b, "Return a share between 0 and 1, not a percentage."),
        (lambda p, m, v: p / (m + p), lambda p, m, v: p / v / (m + p / v), "How many "
         "micro-batches' time does rank 0 wait? Draw 2 ranks."),
        (lambda p, m, v: (p - 1) / (m + p), lambda p, m, v: (p - 1) / v / (m + p / v),
         lambda p, m, v: (p - 1) / v / (m + p), "The numerator is right. The whole step is work "
         "and idle time: add."),
        (lambda p, m, v: (p - 1) / m / p, "The whole step: m units of work, and which idle units?"),
        (lambda p, m, v: (p - 1) / (m + p - 1), "With v stages a rank, each wait is for a stage v "
         "times smaller."),
        (lambda p, m, v: (p - 1) / (m + p - 1) / v, "The idle time is v times smaller, but then "
         "the whole step is shorter, too. Divide first, then form the share."),
        (lambda p, m, v: (p - 1) / m, "Over work, and v is missing. Begin with the idle time of "
         "one rank."),
        (lambda p, m, v: v * (p - 1) / (m + v * (p - 1)),
         lambda p, m, v: (v * p - 1) / (m + v * p - 1), "Upside down: do smaller stages wait "
         "longer?"),
        (lambda p, m, v: (p - 1) / v, lambda p, m, v: p - 1, "That is the idle time, in units of a "
         "micro-batch. What share is it?"),
        (lambda p, m, v: (p - 1) / ((v * m - p + 1) or 1), "You went from the share of the step to "
         "the share of the work: turn it round."),
    ),
    last="Take F + B of one micro-batch on one rank as the unit. How many units does a rank work? "
    "How many does rank 0 wait? The share is the wait over their sum.",
)  # fmt: skip

# fuse_messages

GROUPS = "Return a list of lists: each holds one Action, or Messages that are posted together."


def programs(schedule: Schedule):
    words = f"{schedule.name} of {schedule.ranks} ranks, m = {schedule.micro_batches}"
    return words, (with_messages(schedule, ahead=0),)


def drawn_programs(random):
    ranks = random.randint(2, 5)  # ZB-H1 needs a micro-batch for each rank
    schedule = random.choice((gpipe, one_f_one_b, zero_bubble_h1))
    return programs(schedule(ranks, random.randint(ranks, 9)))


def fused(steps):
    """The reference: all messages between two computations are one group."""
    groups = []
    for step in steps:
        if isinstance(step, Message) and groups and isinstance(groups[-1][0], Message):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def judge_groups(trace, right, programs):
    """With rendezvous sends, no group may wait for ever."""
    answer = trace["returned"]
    for rank, (groups, steps) in enumerate(zip(answer, programs, strict=True)):
        for words, hint in chain(shape_of(groups), order_of(groups, steps)):
            raise NotRight(f"rank {rank}: {words}", hint)
    messages = [[g for g in groups if isinstance(g[0], Message)] for groups in answer]
    stuck = waiting(messages)
    if stuck:
        lines = [f"\n  rank {rank} {' and '.join(map(str, own))}" for rank, own in stuck.items()]
        alone = all(len(group) == 1 for program in messages for group in program)
        raise NotRight(
            f"these messages wait for each other for ever{''.join(lines)}",
            "One message at a time, in any order, leaves two neighbours waiting. Which messages of "
            "a rank lie between two of its computations, and could wait together?"
            if alone
            else "Some messages are together, but not those. Look between two computations: which "
            "messages does a rank have there?",
        )


def shape_of(groups):
    """Yield what is wrong with the lists, and a hint."""
    if not isinstance(groups, list | tuple):
        yield f"returned {type(groups).__name__}", GROUPS
        return
    for group in groups:
        if not isinstance(group, list | tuple) or not group:
            yield f"a group is {group!r}", GROUPS
        elif not all(isinstance(step, Action | Message) for step in group):
            yield "a group holds other things than steps", GROUPS
        elif len(group) > 1 and any(isinstance(step, Action) for step in group):
            yield (
                f"'{next(step for step in group if isinstance(step, Action))}' shares a group",
                "A computation is alone in its group: only messages are posted together.",
            )


def order_of(groups, steps):
    """Yield what is wrong: every step once, computations in order, messages when possible."""
    found = [step for group in groups for step in group]
    if Counter(found) != Counter(steps):
        lost = Counter(steps) - Counter(found)
        which = next(iter(lost or Counter(found) - Counter(steps)))
        yield (
            f"the step '{which}' is {'missing' if lost else 'there twice'}",
            "Every step is in one group." + " Does your loop keep the last group?" * bool(lost),
        )
        return
    computations = [step for step in steps if isinstance(step, Action)]
    if computations != [step for step in found if isinstance(step, Action)]:
        yield (
            "the computations are in another order",
            "The schedule stays as it is. Only messages move together.",
        )
    for message in found:
        if not isinstance(message, Message):
            continue
        made = message.kind == SEND
        stage = message.source if made else message.target
        kinds = (FORWARD,) if message.forward else (BACKWARD, INPUT)
        action = next(a for a in computations if (a.stage, a.micro) == (stage, message.micro)
                      and a.kind in kinds)  # fmt: skip
        if made and found.index(message) < found.index(action):
            yield (
                f"'{message}' is before {action}",
                "A rank sends what it has computed. Between which computations may a send move?",
            )
        if not made and found.index(message) > found.index(action):
            yield (
                f"'{message}' is after {action}",
                "A rank computes with what it has received. How late may a receive be?",
            )


fuse_messages = Exercise(
    right=fused,
    play=lambda solve, programs: {"returned": [solve(list(steps)) for steps in programs]},
    free=("returned",),
    rule=judge_groups,
    draw=drawn_programs,
    cases=tuple(map(programs, (
        gpipe(2, 2), one_f_one_b(4, 8), one_f_one_b(2, 3), one_f_one_b(3, 2), zero_bubble_h1(3, 5)
    ))),
)  # fmt: skip

"""A schedule as a text to edit: a line for each rank, a cell for each computation.

    rank 0: F0 F1 .  B0 .  B1
    rank 1: .  F0 B0 F1 B1

A cell is F, B, I or W and the number of the micro-batch. Dots only show where a rank waits: the
order alone counts. Where a rank has several stages, a cell names its stage: F0@3.
"""

import re

from helpers.plans.schedules.action import FORWARD, INPUT, WEIGHT, Action, Schedule, ScheduleError
from helpers.plans.schedules.times import Costs, timeline
from helpers.plans.schedules.validity import check

CELL = re.compile(r"([A-Za-z]+)(\d+)(?:@(\d+))?")
LINE = re.compile(r"(?:\s*rank\s+(\d+)\s*:)?([^:]*)")
IDLE = {".", "-", "_"}
SLOT = Costs(backward=1.0)  # a cell for each computation, whatever it takes


def to_grid(schedule: Schedule) -> str:
    """Write the schedule as a text, with a dot for each slot in which a rank waits.

    `from_grid` reads it back. The columns are slots of time if each computation takes one slot.

    Raises:
        ScheduleError: the schedule cannot run.
    """
    spans = timeline(schedule, SLOT)
    named = len(set(schedule.placement)) < schedule.stages
    columns = int(max(span.stop for span in spans))
    rows = [["."] * columns for _ in range(schedule.ranks)]
    for span in spans:
        stage = f"@{span.action.stage}" if named else ""
        rows[span.rank][int(span.start)] = f"{span.action.kind}{span.action.micro}{stage}"
    wide = [max(len(row[column]) for row in rows) for column in range(columns)]
    lines = []
    for rank, row in enumerate(rows):
        cells = " ".join(f"{cell:<{width}}" for cell, width in zip(row, wide, strict=True))
        lines.append(f"rank {rank}: {cells.rstrip(' .')}")
    return "\n".join(lines)


def from_grid(text: str, *, name: str = "yours") -> Schedule:
    """Read a schedule from a text and check it.

    Without stages in the cells, rank r has stage r. There are as many micro-batches as the largest
    number of a cell needs. Text after # is a comment.

    Returns:
        A Schedule that is ready to run.

    Raises:
        ScheduleError: a cell cannot be read (its row and place are named), or the schedule cannot
            run (see `check`).
    """
    rows = [line.split("#")[0] for line in text.splitlines()]
    rows = [row for row in rows if row.strip()]
    if not rows:
        raise ScheduleError("the grid is empty: write a line for each rank, F0 B0 for example")
    orders = [tuple(_cells(row, rank)) for rank, row in enumerate(rows)]
    everything = [action for order in orders for action in order]
    if not everything:
        raise ScheduleError("the grid has no computation: a cell is F0 or B0, for example")
    placement = _placement(orders)
    micros = 1 + max(action.micro for action in everything)
    _no_gap(orders, micros)
    return check(Schedule(name, placement, micros, tuple(orders)))


def _cells(row: str, rank: int):
    found = LINE.fullmatch(row)
    if not found:
        raise ScheduleError(f"line {rank}: {row.strip()!r} is not 'rank {rank}:' and cells")
    if found[1] is not None and int(found[1]) != rank:
        raise ScheduleError(
            f"line {rank} is named 'rank {found[1]}'; the lines are the ranks in order, from 0"
        )
    for place, cell in enumerate(found[2].replace("|", " ").split()):
        if cell in IDLE:
            continue
        where = f"rank {rank}, cell {place}: {cell!r}"
        parts = CELL.fullmatch(cell)
        if not parts:
            raise ScheduleError(f"{where} is not a letter and a number, F0 or F0@{rank} or '.'")
        kind = parts[1].upper()
        if kind not in (FORWARD, "B", INPUT, WEIGHT):
            raise ScheduleError(
                f"{where} is no computation: F forward, B backward, or in two parts I (gradient "
                "of the input) and W (gradient of the weights)"
            )
        yield Action(kind, rank if parts[3] is None else int(parts[3]), int(parts[2]))


def _placement(orders) -> tuple[int, ...]:
    """The rank of each stage, from the lines that name it."""
    ranks: dict[int, int] = {}
    for rank, order in enumerate(orders):
        if not order:
            raise ScheduleError(f"rank {rank} has no computation; each rank has a stage at least")
        for action in order:
            if ranks.setdefault(action.stage, rank) != rank:
                raise ScheduleError(
                    f"stage {action.stage} is on rank {ranks[action.stage]} and on rank {rank}; "
                    "a stage has one rank. Does a cell need its stage, F0@1 for example?"
                )
    if missing := set(range(max(ranks) + 1)) - set(ranks):
        raise ScheduleError(
            f"there are stages up to {max(ranks)}, but no cell of stage {min(missing)}"
        )
    return tuple(ranks[stage] for stage in range(len(ranks)))


def _no_gap(orders, micros: int):
    """Raise for a micro-batch without a computation: a number is mistyped."""
    named = {action.micro for order in orders for action in order}
    if missing := set(range(micros)) - named:
        raise ScheduleError(
            f"the micro-batches go up to {micros - 1}, but no rank computes micro-batch "
            f"{min(missing)}; they are numbered from 0, without a gap"
        )

"""Pipeline schedules as data: made, checked, timed, counted and drawn by pure functions.

action        what a schedule is: Actions in an order for each rank
plain         naive, GPipe, 1F1B                 interleaved   v smaller stages on each rank
zero_bubble   ZB-H1 and ZB-V
validity      can it run: each computation once, no deadlock
messages      the sends and the receives between the computations
rendezvous    does it deadlock if a send waits for its receive
times         when each computation runs; the bubble, in both conventions
memory        the micro-batches in flight on each rank
grid          a text to edit: a line for each rank
optimum       the shortest schedule within a memory cap, proved by HiGHS
drawing       the picture: ideal and measured, and step by step
"""

from helpers.plans.schedules.action import (
    BACKWARD,
    FORWARD,
    INPUT,
    RECEIVE,
    SEND,
    WEIGHT,
    Action,
    Message,
    Schedule,
    ScheduleError,
)
from helpers.plans.schedules.drawing import beside_optimum, draw, draw_spans, step_through
from helpers.plans.schedules.grid import from_grid, to_grid
from helpers.plans.schedules.interleaved import interleaved
from helpers.plans.schedules.memory import held, in_flight, in_flight_share
from helpers.plans.schedules.messages import with_messages
from helpers.plans.schedules.optimum import Optimum, optimum
from helpers.plans.schedules.plain import gpipe, naive, one_f_one_b
from helpers.plans.schedules.rendezvous import stuck
from helpers.plans.schedules.times import (
    Bubble,
    Costs,
    Span,
    bubble,
    over_ideal,
    over_total,
    timeline,
)
from helpers.plans.schedules.validity import check
from helpers.plans.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v

__all__ = [
    "BACKWARD",
    "FORWARD",
    "INPUT",
    "RECEIVE",
    "SEND",
    "WEIGHT",
    "Action",
    "Bubble",
    "Costs",
    "Message",
    "Optimum",
    "Schedule",
    "ScheduleError",
    "Span",
    "beside_optimum",
    "bubble",
    "check",
    "draw",
    "draw_spans",
    "from_grid",
    "gpipe",
    "held",
    "in_flight",
    "in_flight_share",
    "interleaved",
    "naive",
    "one_f_one_b",
    "optimum",
    "over_ideal",
    "over_total",
    "step_through",
    "stuck",
    "timeline",
    "to_grid",
    "with_messages",
    "zero_bubble_h1",
    "zero_bubble_v",
]

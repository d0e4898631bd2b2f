"""Pipeline schedules as data: made, checked, timed, counted and drawn by pure functions.

action      what a schedule is: Actions in an order for each rank
plain       naive, GPipe, 1F1B
validity    can it run: each computation once, no deadlock
messages    the sends and the receives between the computations
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
from helpers.plans.schedules.messages import with_messages
from helpers.plans.schedules.plain import gpipe, naive, one_f_one_b
from helpers.plans.schedules.validity import check

__all__ = [
    "BACKWARD",
    "FORWARD",
    "INPUT",
    "RECEIVE",
    "SEND",
    "WEIGHT",
    "Action",
    "Message",
    "Schedule",
    "ScheduleError",
    "check",
    "gpipe",
    "naive",
    "one_f_one_b",
    "with_messages",
]

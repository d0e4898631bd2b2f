"""Pipeline schedules as data: made, checked, timed, counted and drawn by pure functions.

action        what a schedule is: Actions in an order for each rank
plain         naive, GPipe, 1F1B, interleaved 1F1B
zero_bubble   ZB-H1 and ZB-V
validity      can it run: each computation once, no deadlock
messages      the sends and the receives between them; a deadlock if a send waits for its receive
times         when each computation runs; the bubble; the micro-batches in flight on each rank
grid          a text to edit: a line for each rank
optimum       the shortest schedule within a memory cap, proved by HiGHS
drawing       the picture: ideal and measured, and step by step
"""

from helpers.plans.schedules.action import BACKWARD as BACKWARD
from helpers.plans.schedules.action import FORWARD as FORWARD
from helpers.plans.schedules.action import INPUT as INPUT
from helpers.plans.schedules.action import RECEIVE as RECEIVE
from helpers.plans.schedules.action import SEND as SEND
from helpers.plans.schedules.action import WEIGHT as WEIGHT
from helpers.plans.schedules.action import Action as Action
from helpers.plans.schedules.action import Message as Message
from helpers.plans.schedules.action import Schedule as Schedule
from helpers.plans.schedules.action import ScheduleError as ScheduleError
from helpers.plans.schedules.drawing import draw as draw
from helpers.plans.schedules.drawing import draw_spans as draw_spans
from helpers.plans.schedules.drawing import step_through as step_through
from helpers.plans.schedules.grid import from_grid as from_grid
from helpers.plans.schedules.grid import to_grid as to_grid
from helpers.plans.schedules.messages import stuck as stuck
from helpers.plans.schedules.messages import with_messages as with_messages
from helpers.plans.schedules.optimum import Optimum as Optimum
from helpers.plans.schedules.optimum import optimum as optimum
from helpers.plans.schedules.plain import gpipe as gpipe
from helpers.plans.schedules.plain import interleaved as interleaved
from helpers.plans.schedules.plain import naive as naive
from helpers.plans.schedules.plain import one_at_a_time as one_at_a_time
from helpers.plans.schedules.plain import one_f_one_b as one_f_one_b
from helpers.plans.schedules.times import Bubble as Bubble
from helpers.plans.schedules.times import Costs as Costs
from helpers.plans.schedules.times import Span as Span
from helpers.plans.schedules.times import bubble as bubble
from helpers.plans.schedules.times import held as held
from helpers.plans.schedules.times import in_flight as in_flight
from helpers.plans.schedules.times import in_flight_share as in_flight_share
from helpers.plans.schedules.times import over_ideal as over_ideal
from helpers.plans.schedules.times import over_total as over_total
from helpers.plans.schedules.times import timeline as timeline
from helpers.plans.schedules.validity import check as check
from helpers.plans.schedules.zero_bubble import zero_bubble_h1 as zero_bubble_h1
from helpers.plans.schedules.zero_bubble import zero_bubble_v as zero_bubble_v

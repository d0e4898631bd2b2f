"""Small schedules for hypothesis, and what tests say of a schedule."""

from hypothesis import settings
from hypothesis import strategies as st

from helpers.plans.schedules import bubble, check, timeline

ranks = st.integers(1, 8)
micros = st.integers(1, 20)
length = st.integers(1, 9)
quick = settings(max_examples=60, deadline=None)


def grid(schedule):
    return [" ".join(f"{a.kind}{a.micro}" for a in order) for order in schedule.orders]


def words(order):
    return " ".join(f"{a.kind}{a.micro}@{a.stage}" for a in order)


def idle(schedule, costs):
    return bubble(timeline(check(schedule), costs)).idle

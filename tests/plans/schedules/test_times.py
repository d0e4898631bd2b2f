"""A timeline keeps to its order, its inputs and its durations; a bubble counts what is idle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plans.schedules import (
    Action,
    Costs,
    Schedule,
    Span,
    bubble,
    gpipe,
    held,
    in_flight,
    in_flight_share,
    interleaved,
    one_f_one_b,
    over_ideal,
    over_total,
    timeline,
    zero_bubble_h1,
    zero_bubble_v,
)

short = st.integers(0, 5)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from("ohvi"), st.integers(1, 4), st.integers(1, 5), short, short, short, short)
def test_every_timeline_is_possible_and_none_waits_without_a_reason(which, p, m, f, i, w, message):
    schedule = {
        "o": lambda: one_f_one_b(p, m),
        "h": lambda: zero_bubble_h1(p, p + m),
        "v": lambda: zero_bubble_v(p, m),
        "i": lambda: interleaved(p, p * m, 2),
    }[which]()
    costs = Costs(forward=f, input=i, weight=w, message=message)
    length = {"F": f, "I": i, "W": w, "B": i + w}
    spans = timeline(schedule, costs)
    at = {span.action: span for span in spans}
    assert len(at) == len(spans)
    for rank, order in enumerate(schedule.orders):
        free = 0
        for action in order:
            span = at[action]
            kind, stage, micro = action.kind, action.stage, action.micro
            assert span.rank == rank
            assert span.stop - span.start == length[kind]
            ready = [free]
            if kind == "F" and stage:
                ready.append(arrival(at, schedule, rank, "F", stage - 1, micro, message))
            if kind in "BI":
                ready.append(at[Action("F", stage, micro)].stop)
                if stage < schedule.stages - 1:
                    ready.append(arrival(at, schedule, rank, kind, stage + 1, micro, message))
            if kind == "W":
                ready.append(at[Action("I", stage, micro)].stop)
            assert span.start == max(ready)
            free = span.stop


def arrival(at, schedule, rank, kind, stage, micro, message):
    away = schedule.placement[stage] != rank
    return at[Action(kind, stage, micro)].stop + message * away


def test_a_message_delays_the_other_rank_and_not_the_sender():
    spans = {s.action: s for s in timeline(gpipe(2, 2), Costs(backward=2, message=5))}
    assert spans[Action("F", 0, 1)].start == 1
    assert spans[Action("F", 1, 0)].start == 6
    assert spans[Action("B", 0, 0)].start == spans[Action("B", 1, 0)].stop + 5


def test_a_stage_of_half_the_layers_takes_half_the_time():
    assert Costs(message=6, backward=4).divided(2) == Costs(
        forward=0.5, input=0.5, weight=0.5, backward=2, message=6
    )
    assert Costs(input=2, weight=0).divided(4) == Costs(forward=0.25, input=0.5, weight=0)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["forward", "input", "weight", "backward", "message"])
def test_durations_that_are_none(name, value):
    with pytest.raises(ValueError, match=f"^{name} is .*0 or more, and finite"):
        Costs(**{name: value})


def test_a_bubble_of_measured_spans():
    spans = [
        Span(0, 10.0, 11.0, Action("F", 0, 0)),
        Span(1, 11.5, 12.5, Action("F", 1, 0)),
        Span(1, 12.5, 14.0, Action("B", 1, 0)),
        Span(0, 14.5, 16.0, Action("B", 0, 0)),
    ]
    found = bubble(spans)
    assert (found.makespan, found.busy, found.spans) == (6.0, (2.5, 2.5), (6.0, 2.5))
    assert (found.idle, found.over_ideal, found.over_total) == (3.5, 1.4, 3.5 / 6)
    assert found.in_span == 3.5
    later = [Span(2, 12.0, 13.0, Action("F", 2, 0)), *spans[::-1]]  # ranks count in their order
    assert bubble(later).busy == (2.5, 2.5, 1.0)
    assert (bubble(later).idle, bubble(later).in_span) == (3.5, 3.5)  # of the busiest rank
    assert over_ideal(found.over_total) == pytest.approx(1.4)
    assert over_total(found.over_ideal) == pytest.approx(3.5 / 6)
    with pytest.raises(ValueError, match="no span"):
        bubble([])


def test_in_span_leaves_out_the_staggered_start():
    found = bubble(timeline(zero_bubble_v(3, 6), Costs()))
    assert (found.idle, found.in_span) == (2, 0)


def test_what_is_held_during_each_computation():
    assert held(one_f_one_b(2, 2)) == ((1, 2, 2, 1), (1, 1, 1, 1))
    # I keeps what W needs: F0 F1 I0 W0 I1 W1 and F0 I0 F1 I1 W0 W1.
    assert held(zero_bubble_h1(2, 2)) == ((1, 2, 2, 2, 1, 1), (1, 1, 2, 2, 2, 1))
    assert in_flight(zero_bubble_h1(2, 2)) == (2, 2)
    assert in_flight(Schedule("nothing yet", (0, 1), 1, ((), ()))) == (0, 0)


def test_a_share_is_of_the_rank_s_own_stages():
    assert in_flight(interleaved(2, 4, 2)) == (5, 3)
    assert in_flight_share(interleaved(2, 4, 2)) == (2.5, 1.5)
    assert in_flight_share(one_f_one_b(3, 4)) == (3, 2, 1)
    assert max(in_flight_share(zero_bubble_v(3, 6))) == 3

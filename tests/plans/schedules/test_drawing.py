"""The schedule that runs is the schedule that is drawn."""

import pytest

from helpers.plans.schedules import (
    Action,
    Costs,
    Schedule,
    ScheduleError,
    Span,
    draw,
    draw_spans,
    gpipe,
    one_f_one_b,
    step_through,
    timeline,
    zero_bubble_h1,
)
from helpers.plans.schedules.drawing import pieces


def test_a_schedule_draws_itself_with_both_bubbles():
    png, meta = one_f_one_b(4, 8)._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert meta["alt"].startswith("1F1B: bubble 27.3% of the step, 37.5% of the work.")


def test_a_schedule_that_cannot_run_has_no_picture():
    broken = Schedule("mine", (0,), 1, ((Action("B", 0, 0), Action("F", 0, 0)),))
    assert broken._repr_png_() is None
    with pytest.raises(ScheduleError, match="before"):
        draw(broken)


def test_the_unit_of_time_is_a_forward_unless_costs_are_given():
    schedule = one_f_one_b(2, 2)
    (planned,), (paced,) = draw(schedule).axes, draw(schedule, Costs(forward=2, weight=0)).axes
    assert planned.get_xlabel() == "time (a forward is 1)"
    assert paced.get_xlabel() == "time"
    assert planned.get_xlim()[1] == paced.get_xlim()[1] == 9  # F and B take 1 + 2, then 2 + 1


def test_measured_spans_beside_the_ideal():
    ideal = timeline(one_f_one_b(2, 2), Costs(backward=2))
    measured = [Span(s.rank, 7 + 0.1 * s.start, 7 + 0.1 * s.stop, s.action) for s in ideal]
    figure = draw_spans({"ideal": ideal, "measured here": measured}, xlabel=["units", "s"])
    assert figure.axes[1].get_xlim() == pytest.approx((0, 0.9))  # from its own first start
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == [f"{n}: bubble 33.3% of the step, 50.0% of the work"
                      for n in ("ideal", "measured here")]  # fmt: skip


def test_time_begins_at_the_first_start_of_any_rank():
    """Measured spans may be in any order."""
    spans = [Span(1, 7.5, 9.0, Action("B", 3, 4)), Span(0, 7.0, 7.5, Action("F", 2, 1))]
    assert pieces(spans) == [(1, 0.5, 2.0, "B", 3, 4), (0, 0.0, 0.5, "F", 2, 1)]
    assert pieces([]) == []


def test_a_step_shows_what_has_begun_by_then_at_the_costs_given():
    explorer = step_through(gpipe(2, 2), Costs(forward=3, backward=1))
    third = "rank 0 computes 6 between 0 and 6; rank 1 computes 3 between 3 and 6."
    assert third in explorer.picture(3).alt
    assert "rank 0 computes 8 between 0 and 12;" in explorer.picture(8).alt


def test_every_step_of_an_explorer():
    schedule = zero_bubble_h1(2, 2)
    explorer = step_through(schedule)
    assert list(explorer.choices["step"].values()) == list(range(13))
    assert explorer.start == {"step": 6}
    last = explorer.picture(12)
    assert "step 12 of 12: W1 of stage" in last.alt
    begun = explorer.picture(0)
    assert "nothing has begun" in begun.alt
    assert "held, by rank: 0, 0" in begun.alt
    assert "held, by rank: 1, 0" in explorer.picture(1).alt
    # F0 and F1 of rank 0, and F0 of rank 1, have begun.
    third = explorer.picture(3).alt
    assert "held, by rank: 2, 1" in third
    assert "ZB-H1, step 3 of 12: F0 of stage 1 on rank 1" in third
    assert [step_through(schedule, start=n).start["step"] for n in (0, 1)] == [0, 1]

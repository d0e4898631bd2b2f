"""A schedule as data: its sizes, where its stages are, and what each computation needs."""

import pytest

from helpers.plans.schedules import (
    RECEIVE,
    SEND,
    Action,
    Message,
    Schedule,
    ScheduleError,
    gpipe,
    zero_bubble_h1,
)
from helpers.plans.schedules.action import folded, inputs, straight


@pytest.mark.parametrize("placement", [(0, 2), (0, 1), (0, 1, 2, 3)])
def test_each_rank_needs_a_stage_and_an_order(placement):
    with pytest.raises(ScheduleError, match="each rank needs a stage"):
        Schedule("mine", placement, 1, ((), (), ()))
    with pytest.raises(ValueError, match="micro_batches is 0; there must be one or more"):
        Schedule("mine", (0,), 0, ((),))


def test_where_the_stages_are():
    assert straight(3, 2) == (0, 1, 2, 0, 1, 2)
    assert folded(3) == (0, 1, 2, 2, 1, 0)
    schedule = Schedule("mine", folded(2), 1, ((), ()))
    assert (schedule.ranks, schedule.stages) == (2, 4)
    assert [schedule.stages_of(rank) for rank in range(2)] == [(0, 3), (1, 2)]


def test_one_backward_in_two_parts_makes_a_split_schedule():
    order = [Action("F", 0, 0), Action("F", 0, 1), Action("I", 0, 0), Action("W", 0, 0)]
    assert Schedule("mine", (0,), 2, ((*order, Action("B", 0, 1)),)).split
    assert zero_bubble_h1(2, 2).split
    assert not gpipe(2, 2).split


def test_what_each_computation_needs():
    """Of 3 stages: the first needs no activation, and the last one no gradient."""
    assert inputs(Action("F", 0, 5), 3) == []
    assert inputs(Action("F", 2, 5), 3) == [(Action("F", 1, 5),)]
    assert inputs(Action("W", 1, 5), 3) == [(Action("I", 1, 5),)]
    for kind in ("B", "I"):
        assert inputs(Action(kind, 2, 5), 3) == [(Action("F", 2, 5),)]
        assert inputs(Action(kind, 1, 5), 3) == [
            (Action("F", 1, 5),),
            (Action("B", 2, 5), Action("I", 2, 5)),
        ]


def test_computations_and_messages_in_words():
    assert str(Message(RECEIVE, 2, 1, 5, 3)) == "receives the gradient of micro-batch 5 from rank 3"
    assert str(Message(SEND, 1, 2, 0, 4)) == "sends the activation of micro-batch 0 to rank 4"
    assert str(Action("I", 3, 7)) == "I7 of stage 3"

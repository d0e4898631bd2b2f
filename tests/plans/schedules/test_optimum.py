"""The integer program finds what is known to be best, and keeps within the cap."""

from itertools import permutations, product

import pytest

from helpers.plans.schedules import (
    Action,
    Costs,
    Schedule,
    ScheduleError,
    bubble,
    in_flight,
    interleaved,
    one_f_one_b,
    optimum,
    timeline,
    zero_bubble_h1,
)
from helpers.plans.schedules.action import folded


def makespan(schedule, costs):
    return bubble(timeline(schedule, costs)).makespan


@pytest.mark.parametrize(("p", "m", "cap"), [(2, 3, 2), (2, 2, 1), (3, 2, (2, 1, 1))])
def test_against_every_schedule(p, m, cap):
    """Brute force: all orders of all ranks that can run and keep within the cap."""
    costs = Costs(forward=1, backward=2)
    caps = (cap,) * p if isinstance(cap, int) else cap
    best = float("inf")
    choices = [list(every_order(rank, m, caps[rank])) for rank in range(p)]
    for orders in product(*choices):
        try:
            best = min(best, makespan(Schedule("any", tuple(range(p)), m, orders), costs))
        except ScheduleError:
            continue
    found = optimum(p, m, cap, costs)
    assert found.proved
    assert found.makespan == found.bound == best
    assert all(kept <= most for kept, most in zip(in_flight(found.schedule), caps, strict=True))


def every_order(rank, m, cap):
    actions = [Action(kind, rank, micro) for kind in "FB" for micro in range(m)]
    for order in permutations(actions):
        kept = most = 0
        for place, action in enumerate(order):
            kept += 1 if action.kind == "F" else -1
            most = max(most, kept)
            if action.kind == "B" and Action("F", rank, action.micro) not in order[:place]:
                break
        else:
            if most <= cap:
                yield order


def test_1f1b_is_the_best_with_whole_backwards_and_h1_with_split_ones():
    whole = Costs(forward=1, backward=2)
    found = optimum(3, 4, 3, whole)
    assert found.proved
    assert found.makespan == makespan(one_f_one_b(3, 4), whole)
    assert found.schedule.name == "optimum"
    apart = optimum(2, 3, 2, Costs(), split=True)
    assert apart.proved
    assert apart.makespan == makespan(zero_bubble_h1(2, 3), Costs())
    assert apart.schedule.split


def test_a_rank_with_less_memory_than_the_ranks_after_it():
    found = optimum(3, 2, (1, 3, 3))
    assert found.proved
    assert found.makespan == 2 * 3 * 3  # the first rank lets one micro-batch in at a time


def test_messages_and_a_v():
    costs = Costs(forward=1, backward=2, message=1)
    there_and_back = optimum(2, 1, 1, costs)
    assert there_and_back.makespan == 2 + 4 + 2
    turned = optimum(2, 1, 2, costs, placement=folded(2))
    assert turned.makespan == 4 + 8 + 4  # rank 0, rank 1 twice in a row, rank 0, and back
    assert there_and_back.proved  # the program counts messages, too
    assert turned.proved
    assert turned.schedule.placement == (0, 1, 1, 0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cap": 0}, "rank 0 may keep 0"),
        ({"cap": (2, 0)}, "rank 1 may keep 0"),
        ({"cap": (2, 2, 2)}, "3 caps for 2 ranks"),
        ({"costs": Costs(forward=0.5)}, "a duration is 0.5; the search needs whole numbers"),
        ({"costs": Costs(message=0.5)}, "a duration is 0.5"),
        ({"costs": Costs(weight=0), "split": True}, "1 or more"),
        ({"micro_batches": 100}, "fewer micro-batches"),
        ({"micro_batches": 0}, "one or more"),
        ({"cap": 1, "placement": folded(2)}, "one micro-batch alone needs 2"),
    ],
)
def test_what_cannot_be_searched(options, reason):
    with pytest.raises(ScheduleError, match=reason):
        optimum(**{"ranks": 2, "micro_batches": 2, "cap": 2, **options})


def test_a_search_that_ends_too_early_says_so():
    costs = Costs(backward=2)
    found = optimum(3, 6, 3, costs, seconds=0.01)
    assert not found.proved
    assert found.makespan == makespan(one_f_one_b(3, 6), costs)  # what is known without a search
    assert 6 * 3 <= found.bound < found.makespan
    assert found.schedule.name == "optimum"
    apart = optimum(3, 6, 3, costs=Costs(), split=True, seconds=0.01).schedule
    assert apart.split  # so is what is known without a search
    assert {action.kind for order in apart.orders for action in order} == {"F", "I", "W"}


def test_a_known_schedule_is_a_place_to_start():
    costs, known = Costs(backward=2), interleaved(2, 4, 2)
    sizes = {"placement": known.placement, "seconds": 0.01}
    from_it = optimum(2, 4, max(in_flight(known)), costs, known=known, **sizes)
    assert from_it.makespan == makespan(known, costs)
    assert from_it.schedule.orders == known.orders
    assert optimum(2, 4, 2, costs, known=known, **sizes).makespan > from_it.makespan  # over the cap
    first, last = in_flight(known)
    less = optimum(2, 4, (first, last - 1), costs, known=known, **sizes).schedule
    assert in_flight(less)[1] < last  # so over the cap of one rank is over the cap

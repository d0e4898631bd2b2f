"""How many activations each rank keeps while a computation runs, and at most."""

from helpers.plans.schedules import (
    Schedule,
    held,
    in_flight,
    in_flight_share,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_v,
)


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

"""Where a job's time goes when it is stopped again and again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.resilience.faults import Fault
from helpers.resilience.replay import replay, stops_of_job

COSTS = {"every": 4.0, "write": 1.0, "restart": 2.0}


@pytest.mark.parametrize(
    ("stops", "until", "trained", "written", "lost", "down"),
    [
        ([], 12, 10, 2, 0, 0),  # two checkpoints, and two units at the end
        ([12], 24, 16, 4, 2, 2),  # a restart at 12; from 14 on two more checkpoints
        ([4.5], 7, 0.5, 0, 4.5, 2),  # the first checkpoint was not finished
        ([5], 7, 4, 1, 0, 2),  # it was finished in that moment
        ([5, 6], 8, 4, 1, 0, 3),  # a fault in the restart begins it anew
        ([(5, 3)], 12, 6, 1, 0, 5),  # three units without a server
        ([(5, 3), 6], 12, 8, 1, 0, 3),  # the second fault ends the wait: another server
        ([11], 12, 8, 2, 1, 1),  # the end comes in the restart
        ([], 14.5, 12, 2.5, 0, 0),  # the end comes in a writing
    ],
)
def test_by_hand(stops, until, trained, written, lost, down):
    outcome = replay(stops, until, **COSTS)
    found = (outcome.trained, outcome.written, outcome.lost, outcome.down)
    assert found == pytest.approx((trained, written, lost, down))
    assert outcome.faults == len(stops)
    assert outcome.goodput == pytest.approx(trained / until)


positive = st.floats(0.05, 5)


@given(st.lists(st.tuples(positive, positive), max_size=30), positive, positive, positive)
def test_every_moment_is_accounted_for(gaps, every, write, restart):
    stops, now = [], 0.0
    for gap, wait in gaps:
        now += gap
        stops.append((now, wait))
    outcome = replay(stops, 60.0, every=every, write=write, restart=restart)
    parts = (outcome.trained, outcome.written, outcome.lost, outcome.down)
    assert all(part >= -1e-9 for part in parts)
    assert sum(parts) == pytest.approx(60.0)
    assert outcome.trained >= outcome.written / write * every - 1e-6


@pytest.mark.parametrize("wrong", [{"every": 0}, {"write": -1}, {"restart": -1}])
def test_times_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="every is to be positive"):
        replay([], 10, **COSTS | wrong)
    assert replay([5], 10, every=1, write=0, restart=0).trained == 10  # all else is free


def test_stops_after_the_end_do_not_count():
    outcome = replay([3, 100], 10, **COSTS)
    assert outcome.faults == 1


FAULTS = [Fault(1, 3, 0), Fault(2, 9, 1), Fault(4, 5, 0), Fault(6, 7, 2)]


def test_a_job_on_the_whole_cluster_waits_for_each_repair():
    stops = stops_of_job(FAULTS, servers=3, of=3)
    assert stops == [(1, 2), (2, 7), (4, 5), (6, 3)]


def test_a_spare_takes_over_at_once():
    assert stops_of_job(FAULTS[:1], servers=3, of=4, seed=0) in ([], [(1, 0)])
    seen = [stops_of_job(FAULTS[:1], servers=1, of=4, seed=seed) for seed in range(40)]
    assert 4 <= sum(stops == [(1, 0)] for stops in seen) <= 18  # a quarter of the servers
    assert all(stops in ([], [(1, 0)]) for stops in seen)


def test_faults_of_unused_servers_stop_nothing_and_use_up_spares():
    both = [Fault(1, 10, 0), Fault(2, 10, 1)]
    for seed in range(10):
        for time, wait in stops_of_job(both, servers=2, of=3, seed=seed):
            assert wait == (8 if time == 2 else 0)


def test_an_evicted_server_never_comes_back():
    again = [Fault(k, k + 0.5, 0) for k in range(1, 9)]
    kept = stops_of_job(again, servers=3, of=3)
    assert len(kept) == 8
    for limit in (1, 2, 3):
        counts = {
            len(stops_of_job(again, servers=2, of=3, evict=limit, seed=seed)) for seed in range(10)
        }
        assert max(counts) <= limit
    with pytest.raises(ValueError, match="evicting after 2 faults leaves too few servers"):
        stops_of_job(again, servers=3, of=3, evict=2)


def test_a_server_is_evicted_at_the_fault_that_is_named():
    """Two servers fail in turn, and the job needs one: the fourth fault is the second of both."""
    turns = [Fault(k, k + 0.5, k % 2) for k in range(1, 5)]
    for seed in range(6):
        assert len(stops_of_job(turns[:3], servers=1, of=2, evict=2, seed=seed)) in (2, 3)
        with pytest.raises(ValueError, match="evicting after 2 faults leaves too few servers"):
            stops_of_job(turns, servers=1, of=2, evict=2, seed=seed)


def test_a_job_that_does_not_fit_is_refused():
    for servers in (0, 4):
        with pytest.raises(ValueError, match=f"a job of {servers} servers does not fit"):
            stops_of_job([], servers=servers, of=3)


def test_the_longer_of_two_repairs_counts():
    both = [Fault(1, 10, 0), Fault(2, 3, 0), Fault(4, 5, 1)]
    assert stops_of_job(both, servers=2, of=2) == [(1, 9), (2, 8), (4, 6)]

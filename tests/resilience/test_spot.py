"""Policies of spot instances: deadlines are kept on every trace, and nothing beats hindsight."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.resilience import spot
from helpers.resilience.spot import ON_DEMAND, SPOT, WAIT, Job, Now

PRICES = {SPOT: 1.0, ON_DEMAND: 3.0}
POLICIES = (spot.on_demand, spot.greedy, spot.uniform_progress)


@st.composite
def jobs(draw, most=30):
    work, start, slack = (draw(st.integers(low, most)) for low in (1, 0, 0))
    start = min(start, 5)
    job = Job(work=work, start=start, deadline=work + start + slack)
    return job, draw(st.lists(st.booleans(), min_size=job.deadline, max_size=job.deadline))


@given(jobs())
def test_no_trace_makes_a_policy_miss_the_deadline(case):
    job, trace = case
    least = spot.cheapest(job, trace, PRICES)
    for policy in POLICIES:
        run = spot.run(policy, job, trace, PRICES)
        assert run.finished is not None
        assert run.finished <= job.deadline
        assert least <= run.cost + 1e-9
        assert sum(run.ticks.values()) == len(run.choices) == run.finished
        trained = run.finished - run.ticks[WAIT] - run.starts * job.start
        assert trained <= job.work  # a start may be cut short by a loss


@given(jobs(most=3))
def test_hindsight_is_the_best_of_all_choices(case):
    job, trace = case
    costs = []
    for choices in itertools.product((WAIT, SPOT, ON_DEMAND), repeat=job.deadline):
        plan = iter(choices)
        try:
            run = spot.run(lambda now, plan=plan: next(plan), job, trace, PRICES)
        except ValueError:
            continue  # spot where there is none
        if run.finished is not None:
            costs.append(run.cost)
    assert spot.cheapest(job, trace, PRICES) == pytest.approx(min(costs))


def test_by_hand():
    """Work 4, a start of 1, deadline 9; spot is there in ticks 0 to 2 and 6 to 8."""
    job, trace = Job(work=4, start=1, deadline=9), [1, 1, 1, 0, 0, 0, 1, 1, 1]
    alone = spot.run(spot.on_demand, job, trace, PRICES)
    assert (alone.cost, alone.finished, alone.starts) == (15.0, 5, 1)
    greedy = spot.run(spot.greedy, job, trace, PRICES)
    # spot trains in ticks 1 and 2; it waits until 3 ticks are as many as a start and the rest need
    assert greedy.choices == (SPOT,) * 3 + (WAIT,) * 3 + (ON_DEMAND,) * 3
    assert greedy.cost == 12.0
    assert greedy.ticks == {WAIT: 3, SPOT: 3, ON_DEMAND: 3}
    assert spot.cheapest(job, trace, PRICES) == 6.0  # it knows that spot comes back at tick 6
    pace = spot.run(spot.uniform_progress, job, trace, PRICES)
    assert pace.choices[:5] == (SPOT, SPOT, SPOT, WAIT, WAIT)  # 2 of 4 done at 4.5 of 9
    assert pace.choices[5] == ON_DEMAND  # behind


def test_uniform_progress_does_not_start_again_and_again():
    """On demand stays until two starts ahead, although spot is there."""
    job = Job(work=10, start=2, deadline=30)
    now = Now(tick=12, done=4, spot=True, using=ON_DEMAND, booting=0, job=job)
    assert spot.uniform_progress(now) == ON_DEMAND  # ahead by less: 4/10 < 16/30
    ahead = Now(tick=12, done=6, spot=True, using=ON_DEMAND, booting=0, job=job)
    assert spot.uniform_progress(ahead) == SPOT
    assert spot.uniform_progress(Now(**{**vars(ahead), "spot": False})) == WAIT


def test_a_job_or_policy_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="no policy can keep this deadline"):
        Job(work=5, start=1, deadline=5)
    with pytest.raises(ValueError, match="at least one tick"):
        Job(work=0, start=1, deadline=5)
    job = Job(work=2, start=0, deadline=3)
    with pytest.raises(ValueError, match="shorter than the deadline"):
        spot.run(spot.greedy, job, [True], PRICES)
    with pytest.raises(ValueError, match="tick 0: the policy chose 'spot'"):
        spot.run(lambda now: SPOT, job, [False] * 3, PRICES)
    late = spot.run(lambda now: WAIT, job, [False] * 3, PRICES)
    assert late.finished is None
    assert late.cost == 0


@pytest.mark.parametrize(("share", "life"), [(0.88, 122), (0.45, 34), (0.8, 4)])
def test_a_drawn_trace_has_its_share_and_its_life(share, life):
    trace = spot.drawn(share, life, 400_000, seed=0)
    assert sum(trace) / len(trace) == pytest.approx(share, abs=0.02)
    lives = [len(list(run)) for there, run in itertools.groupby(trace) if there]
    assert sum(lives) / len(lives) == pytest.approx(life, rel=0.05)
    assert trace[:1000] != spot.drawn(share, life, 1000, seed=1)


@pytest.mark.parametrize(("share", "life"), [(0, 5), (1, 5), (0.5, 0.5), (0.9, 5)])
def test_a_chain_that_cannot_be_is_refused(share, life):
    with pytest.raises(ValueError, match="no chain of ticks"):
        spot.drawn(share, life, 10, seed=0)


def test_a_trace_of_the_repository_is_read():
    text = json.dumps({"metadata": {"gap_seconds": 180}, "data": [0, 1, 4, 0]})
    assert spot.parse(text) == (180.0, [False, True, True, False])

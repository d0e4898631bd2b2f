"""Week 14, beyond the loop over all exercises: what the oracles find, played by hand."""

import pytest

from helpers.check import hidden, week14, week14b
from helpers.resilience import spot
from helpers.resilience.spot import WAIT


def test_a_commit_is_killed_at_each_of_its_calls():
    """Four shards and the manifest; then the old shards go. Each kill hits its own copy."""
    assert week14.play_commits(week14.commit_to, 4) == {
        "readers find after a commit": "step 2, whole",
        "readers find after a kill": ["step 1, whole", "step 2, whole"],
        "objects after two commits": 5,
        "readers and objects after a kill and another commit": [("step 3, whole", 5)],
    }


TIGHT = (12, 16, 1, 0.7, 5)  # work, deadline, start, share, life


@pytest.mark.parametrize("case", [TIGHT, (12, 60, 1, 0.9, 40)])
def test_a_policy_is_measured_by_the_better_one_of_two(case):
    costs = [week14b.play_policy(p, *case)["cost"] for p in (spot.greedy, spot.uniform_progress)]
    assert min(costs) == pytest.approx(1)
    assert max(costs) > 1.01
    late = week14b.play_policy(lambda now: WAIT, *case)
    assert late == {"deadlines missed": week14b.TRACES, "cost": 0.0}


def test_grading_draws_other_traces():
    usual = week14b.play_policy(spot.on_demand, *TIGHT)
    with hidden.drawn_from(1):
        assert week14b.play_policy(spot.on_demand, *TIGHT) != usual

"""Week 14, beyond the loop over all exercises: what the oracles find, played by hand."""

import json
import re
from functools import partial

import pytest

from helpers.check import week14, week14b
from helpers.resilience import spot
from helpers.resilience.spot import WAIT


def test_a_commit_is_killed_at_each_of_its_calls():
    """Four shards and the manifest; then the old shards go. Each kill hits its own copy."""
    assert week14.play_commits(partial(week14.calls_of, week14.commit_to), 4) == {
        "readers find after a commit": "step 2, whole",
        "readers find after a kill": ["step 1, whole", "step 2, whole"],
        "objects after two commits": 5,
        "readers and objects after a kill and another commit": [("step 3, whole", 5)],
        "readers find after a kill of each commit": [f"step {n}, whole" for n in (1, 2, 3)],
    }


def deletes_what_the_last_manifest_names(store, step, shards):
    old = json.loads(store.get("newest"))["shards"] if "newest" in store.names() else {}
    places = {name: f"{step}/{name}" for name in shards}
    for name, data in shards.items():
        store.put(places[name], data)
    store.put("newest", json.dumps({"step": step, "shards": places}).encode())
    for name in {*old.values()} & {*store.names()}:
        store.delete(name)


def test_objects_that_a_kill_has_left_are_counted():
    asks = partial(week14.calls_of, deletes_what_the_last_manifest_names)
    found = week14.play_commits(asks, 4)
    assert found["objects after two commits"] == 5
    left = found["readers and objects after a kill and another commit"]
    assert left == [("step 3, whole", count) for count in range(5, 10)]


# work, deadline, start, share, life, first seed
@pytest.mark.parametrize("case", [(12, 16, 1, 0.7, 5, 0), (12, 60, 1, 0.9, 40, 0)])
def test_a_policy_is_measured_by_the_better_one_of_two(case):
    def played(policy):
        return week14b.play_policy(partial(week14b.choices, policy), *case)

    costs = [played(policy)["cost"] for policy in (spot.greedy, spot.uniform_progress)]
    assert min(costs) == pytest.approx(1)
    assert max(costs) > 1.01
    late = played(lambda now: WAIT)
    assert late == {"refused": "no choice", "deadlines missed": week14b.TRACES, "cost": 0.0}
    said = played(lambda now: "spot")["refused"]
    assert re.fullmatch(r"'spot' in tick \d, with now.spot = False", said)

"""The judge of partial sums and its hints, alone, on reports that are written by hand."""

import pytest

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import HANG_HINT, NotRight
from helpers.check.week04 import partial_sums
from helpers.check.week04.kinds import OTHER, RIGHT, ROUNDED
from helpers.check.week04.partial_sums import PARTIAL
from helpers.runtime.runs import Runs

NORM, CUT, BIAS, TABLE = "norm.weight", "mlp.up.weight", "mlp.down.bias", "tokens.weight"
SHARE = "the right one, divided by N"


def reports(rank=2, sent=300, unwaited=0, **kinds):
    """Three ranks; on one of them these gradients have other kinds."""
    names = {"norm": NORM, "cut": CUT, "bias": BIAS, "table": TABLE}
    runs = [
        {"kinds": dict.fromkeys(names.values(), RIGHT), "cut": {CUT}, "unwaited": 0, "sent": 300,
         "due": 300}
        for _ in range(3)
    ]  # fmt: skip
    runs[rank]["kinds"] |= {names[name]: kind for name, kind in kinds.items()}
    runs[rank] |= {"sent": sent, "unwaited": unwaited}
    return runs


def judged(*given, **named):
    with pytest.raises(NotRight) as wrong:
        partial_sums.judge_sums(reports(*given, **named))
    return wrong.value


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_rank_counts(rank):
    partial_sums.judge_sums(reports(sent=299))
    wrong = judged(rank, unwaited=1)
    assert wrong.finding == f"rank {rank} returned before an all-reduce was over"
    wrong = judged(rank, cut=OTHER, table=SHARE)
    assert wrong.finding == (
        f"afterwards, some gradients of rank {rank} are not right\n"
        f"  {CUT} (cut): {OTHER}\n  {TABLE}: {SHARE}"
    )
    wrong = judged(rank, sent=1301)
    assert wrong.finding == (
        f"the right gradients, but rank {rank} sent 1,301 bytes; the partial sums have 300"
    )
    assert "complete already" in wrong.hint


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"norm": PARTIAL, "sent": 0}, "No message was sent"),
        ({"norm": PARTIAL, "table": OTHER, "sent": 0}, "No message was sent"),
        ({"cut": PARTIAL, "sent": 0}, "No message was sent"),
        ({"norm": OTHER, "sent": 0}, "Which number has changed besides"),
        ({"cut": "N times the right one", "norm": PARTIAL}, "belongs to one rank"),
        ({"norm": SHARE}, "Divided by N"),
        ({"norm": SHARE, "table": OTHER}, "Divided by N"),
        ({"norm": "this rank's part, divided by N"}, "Divided by N"),
        ({"norm": "N times the right one"}, "one too many"),
        ({"norm": "N times the right one", "bias": OTHER}, "Which number has changed besides"),
        ({"norm": PARTIAL, "table": PARTIAL}, "norms are not summed"),
        ({"bias": PARTIAL, "norm": PARTIAL}, "norms are not summed"),
        ({"bias": PARTIAL, "table": PARTIAL}, "added after the reduce-scatter"),
        ({"table": PARTIAL}, "neither norms nor biases"),
        ({"table": PARTIAL, "norm": ROUNDED}, "another dtype"),
        ({"table": OTHER, "norm": ROUNDED}, "another dtype"),
        ({"norm": PARTIAL, "table": OTHER}, "Which number has changed besides"),
    ],
)
def test_the_hint_for_the_kinds_of_wrong_gradients(given, hint):
    assert hint in judged(**given).hint


class Asked:
    """A place that runs nothing, and keeps what it was asked to run."""

    def __init__(self):
        self.asked = []

    def launch(self, run, workers, fn, kwargs, timeout):
        self.asked.append((workers, kwargs, timeout))
        return Runs(reports()[:workers])


def test_the_ranks_and_the_patience():
    place = Asked()
    with elsewhere.at(place):
        verdict = check.sum_partial_gradients(None)
    assert verdict
    assert verdict.exercise == "sum_partial_gradients"
    assert place.asked == [(2, {}, 40.0), (3, {}, 40.0)]


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("'NoneType' object", "A frozen parameter has no gradient"),
        ("rank 1: no sign of life", HANG_HINT),
        ("rank 1 died: SIGABRT", HANG_HINT),
        ("KeyError: 'x'", ""),
    ],
)
def test_hints_for_errors(finding, hint):
    found = partial_sums.hint_failure(finding)
    assert found.startswith(hint)
    assert bool(found) == bool(hint)

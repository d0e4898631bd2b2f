"""A step with a loss scale: what ranks are given, and what the judge refuses, without ranks."""

import math
from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import NotRight
from helpers.check.week08 import scaled_step as exercise
from helpers.check.week08.scaled_step import CASES, HINTS, Reference, judge_steps
from helpers.runtime.runs import Runs

INF, NAN = float("inf"), float("nan")
NAMES = ("it grows", "one overflow", "clipped", "one rank overflows", "a large sum")


def half(number, scale):
    """What fp16 makes of a scaled gradient."""
    return torch.tensor(number * scale, dtype=torch.float32).half().item()


def played(steps):
    """What each rank should leave behind: sum, unscale, clip to 1, subtract half of it."""
    scale, good, master, found = 1024.0, 0, [1.0, -2.0, 0.5], []
    for step in steps:
        total = [sum(half(number, scale) for number in column) / scale
                 for column in zip(*step, strict=True)]  # fmt: skip
        norm = math.hypot(*total)
        skipped = not math.isfinite(norm)
        if skipped:
            scale, good = scale / 2, 0
        else:
            master = [m - 0.5 * g / max(1.0, norm) for m, g in zip(master, total, strict=True)]
            scale, good = (scale * 2, 0) if good == 1 else (scale, 1)
        scaler = {"scale": scale, "growth": 2.0, "backoff": 0.5, "interval": 2, "good_steps": good}
        found.append({"skipped": skipped, "master": list(master), "scaler": scaler})
    return found


def runs(case, **changes):
    """Right reports of all ranks; `changes` are the last rank's, in its last step."""
    ranks, steps = CASES[case]
    given = [played(steps) for _ in range(ranks)]
    given[-1][-1] |= changes
    return given, steps


def refused(case, **changes):
    with pytest.raises(NotRight) as wrong:
        judge_steps(*runs(case, **changes))
    return wrong.value


def last(case):
    ranks, steps = CASES[case]
    return f"step {len(steps) - 1}, rank {ranks - 1}: "


@pytest.mark.parametrize("case", range(5), ids=NAMES)
def test_what_is_right_passes(case):
    judge_steps(*runs(case))
    found = [report["skipped"] for report in runs(case)[0][0]]
    assert found == [[False] * 3, [False, True, False, False], [False] * 2, [True, False],
                     [False] * 2][case]  # fmt: skip
    scales = [report["scaler"]["scale"] for report in runs(case)[0][0]]
    assert scales == [[1024, 2048, 2048], [1024, 512, 512, 1024], [1024, 2048], [512, 512],
                      [1024, 2048]][case]  # fmt: skip


@pytest.mark.parametrize("case", range(5), ids=NAMES)
def test_the_last_step_of_the_last_rank_counts(case):
    right = runs(case)[0][-1][-1]
    for by in (2e-5, -2e-5):
        wrong = refused(case, master=[*right["master"][:2], right["master"][2] + by])
        assert wrong.finding.startswith(f"{last(case)}the master copy is [")
        assert wrong.finding.endswith(f", and should be {exercise.plain(right['master'])}")
        assert wrong.hint == "Unscale, clip, then subtract lr times the gradient, in place."
        judge_steps(*runs(case, master=[*right["master"][:2], right["master"][2] + by / 2.5]))
    wrong = refused(case, skipped=not right["skipped"])
    assert wrong.finding == f"{last(case)}returned {not right['skipped']}"
    wrong = refused(case, skipped="None")
    assert wrong.finding == f"{last(case)}returned None"
    assert wrong.hint == "Return True or False: skipped?"
    wrong = refused(case, scaler=right["scaler"] | {"good_steps": 7})
    assert wrong.finding.startswith(f"{last(case)}the scaler is {{")
    assert wrong.finding.endswith(f"and should be {right['scaler']}")
    assert wrong.hint == "Count the good steps since the last change of the scale."


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_a_number_that_is_not_finite(value):
    right = runs(2)[0][-1][-1]["master"]
    assert "enough to lose the training" in refused(2, master=[*right[:2], value]).hint


def test_a_skipped_step_has_to_be_reported():
    for case, step in ((1, 1), (3, 0)):
        given, steps = runs(case)
        given[-1][step]["skipped"] = False
        with pytest.raises(NotRight) as wrong:
            judge_steps(given, steps)
        assert wrong.value.finding == f"step {step}, rank {len(given) - 1}: returned False"
        assert wrong.value.hint == "Return whether this step's update was skipped."


def test_a_skipped_step_changes_nothing():
    given, steps = runs(3)
    given[1][0]["master"][0] += 0.25
    with pytest.raises(NotRight) as wrong:
        judge_steps(given, steps)
    assert wrong.value.finding == (
        "step 0, rank 1: the master copy is [1.25, -2, 0.5], and should be [1, -2, 0.5]"
    )
    assert wrong.value.hint == "A gradient of this step was not finite: nothing may change."


@pytest.mark.parametrize(
    ("mistake", "case", "step", "rank"),
    [
        ("clip first", 1, 0, 0),
        ("never unscaled", 2, 0, 1),
        ("no clipping", 2, 1, 1),
        ("sum in fp16", 4, 0, 1),
        ("mean", 2, 0, 1),
        ("alone", 3, 0, 0),
    ],
)
def test_a_known_mistake_of_one_rank_in_one_step(mistake, case, step, rank):
    given, steps = runs(case)
    theirs = Reference(mistake).run(steps)[step][rank]
    given[rank][step]["master"] = theirs
    with pytest.raises(NotRight) as wrong:
        judge_steps(given, steps)
    assert wrong.value.finding == (
        f"step {step}, rank {rank}: the master copy is {exercise.plain(theirs)}"
    )
    assert wrong.value.hint == HINTS[mistake]


def test_a_rank_that_skips_alone():
    """The rank that overflowed keeps its copy; the other one has the sum, with a NaN in it."""
    first, second = Reference("alone").run(CASES[3][1])[0]
    assert first[0] != first[0]
    assert second == [1.0, -2.0, 0.5]
    steps = [[[NAN, 0.5, 0.0], [0.5, 0.5, 0.0]]]  # the other way round
    given = [played(steps), played(steps)]
    given[1][0]["master"] = Reference("alone").run(steps)[0][1]
    with pytest.raises(NotRight, match="step 0, rank 1: the master copy is") as wrong:
        judge_steps(given, steps)
    assert wrong.value.hint == HINTS["alone"]


def test_the_reference_without_a_mistake():
    for _, steps in CASES:
        right = [report["master"] for report in played(steps)]
        for found, expected in zip(Reference().run(steps), right, strict=True):
            for row in found:
                assert row == pytest.approx(expected, rel=1e-6)


def test_the_last_master_copies_by_hand():
    """From (1, -2, 0.5), minus half of the sums; (3, 4, 12) is divided by 13, and 120 by 120."""
    found = [played(steps)[-1]["master"] for _, steps in CASES]
    assert found == [
        pytest.approx([0.8125 - 1.5e-7, -2.0, 0.25], abs=1e-9),
        [0.5625, -2.375, 0.25],
        pytest.approx([0.625 - 1.5 / 13, -2.125 - 2 / 13, 0.625 - 6 / 13]),
        pytest.approx([0.75, -2.0, 0.25]),
        [0.125, -2.0, 0.5],
    ]


def test_mistakes_by_hand():
    """Two ranks with gradients (0.5, 0) and (1, 0): the sum is 1.5, and its norm too."""
    steps = [[[0.5, 0.0, 0.0], [1.0, 0.0, 0.0]]]
    for mistake, first in {
        "": 1 - 0.5,
        "clip first": 1 - 0.5 / 1024,
        "never unscaled": 1 - 0.5,  # clipped anyway
        "no clipping": 1 - 0.5 * 1.5,
        "sum in fp16": 1 - 0.5,
        "mean": 1 - 0.5 * 0.75,
        "alone": 1 - 0.5,
    }.items():
        found = Reference(mistake).run(steps)
        assert found == [[[pytest.approx(first), -2.0, 0.5]] * 2]
    small = [[[0.125, 0.0, 0.0], [0.25, 0.0, 0.0]]]
    assert Reference("never unscaled").run(small)[0][1][0] == pytest.approx(0.5)
    assert Reference("clip first").run(small)[0][1][0] == pytest.approx(1 - 0.5 / 1024)


def test_the_factor_of_a_clip():
    assert exercise.clip_factor(torch.tensor([3.0, 4.0])) == pytest.approx(0.2)
    assert exercise.clip_factor(torch.tensor([0.3, 0.4])) == 1.0
    assert exercise.clip_factor(torch.zeros(2)) == 1.0


BEFORE = {"scale": 64.0, "growth": 2.0, "backoff": 0.5, "interval": 2, "good_steps": 1}


@pytest.mark.parametrize(
    ("right", "found", "skipped", "hint"),
    [
        ({"scale": 32.0, "good_steps": 0}, {"more": 1}, True, "Change only 'scale'"),
        ({"scale": 32.0, "good_steps": 0}, {"scale": 64.0}, True, "too large for this step"),
        ({"scale": 32.0, "good_steps": 0}, {"scale": 16.0}, True, "by the backoff, once"),
        ({"scale": 32.0, "good_steps": 0}, {"scale": 48.0}, True, "by the backoff, once"),
        ({"scale": 32.0, "good_steps": 0}, {"good_steps": 1}, True, "starts again at 0"),
        ({"scale": 64.0, "good_steps": 1}, {"scale": 128.0}, False, "grew too early"),
        ({"scale": 128.0, "good_steps": 0}, {"scale": 64.0}, False, "in a row: it grows"),
        ({"scale": 128.0, "good_steps": 0}, {"good_steps": 2}, False, "Count the good steps"),
        ({"scale": 128.0, "good_steps": 0}, {"growth": 3.0}, False, "Count the good steps"),
    ],
)
def test_the_hint_for_a_scaler(right, found, skipped, hint):
    right = BEFORE | right
    exercise.judge_scaler(dict(right), BEFORE, right, skipped, "step 1, rank 0")
    with pytest.raises(NotRight) as wrong:
        exercise.judge_scaler(right | found, BEFORE, right, skipped, "step 1, rank 0")
    assert wrong.value.finding == (
        f"step 1, rank 0: the scaler is {right | found}, and should be {right}"
    )
    assert hint in wrong.value.hint


def test_a_scaler_without_a_scale():
    missing = {key: value for key, value in BEFORE.items() if key != "scale"}
    with pytest.raises(NotRight, match="the scaler is") as wrong:
        exercise.judge_scaler(missing, BEFORE, BEFORE, False, "")
    assert "Change only" in wrong.value.hint


def test_what_a_rank_is_given():
    """Its own gradient, with the scale that the step before has left."""
    seen, answers = [], [False, None, True]

    def solve(worker, master, gradient, scaler, lr, max_norm):
        seen.append((gradient.tolist(), gradient.dtype, lr, max_norm))
        if len(seen) == 1:
            assert master.tolist() == [1.0, -2.0, 0.5]
            assert scaler == {"scale": 1024.0, "growth": 2.0, "backoff": 0.5, "interval": 2,
                              "good_steps": 0}  # fmt: skip
        master += 1
        scaler["scale"] *= 4
        return answers[len(seen) - 1]

    steps = [[[9.0], [0.5]], [[9.0], [0.25]], [[9.0], [0.125]]]
    found = exercise.run_steps(SimpleNamespace(rank=1, world_size=2), solve, steps)
    assert seen == [([number], torch.float16, 0.5, 1.0) for number in (512.0, 1024.0, 2048.0)]
    assert [one["skipped"] for one in found] == [False, "None", True]
    assert [one["master"] for one in found] == [[1 + n, n - 2.0, 0.5 + n] for n in (1, 2, 3)]
    assert [one["scaler"]["scale"] for one in found] == [4096.0, 16_384.0, 65_536.0]
    again = exercise.run_steps(SimpleNamespace(rank=0, world_size=2), lambda *_: False, steps)
    assert again[2] == {"skipped": False, "master": [1, -2, 0.5], "scaler": exercise.START}


@pytest.mark.parametrize("scale", [0.0, -1.0, INF, NAN, "1", None])
def test_a_scale_that_cannot_be_used_ends_the_run(scale):
    calls = []

    def solve(worker, master, gradient, scaler, lr, max_norm):
        calls.append(1)
        scaler["scale"] = scale if len(calls) == 2 else 8
        return False

    steps = [[[1.0]]] * 4
    found = exercise.run_steps(SimpleNamespace(rank=0, world_size=1), solve, steps)
    assert len(calls) == len(found) == 2


def test_a_scaler_that_has_lost_its_scale_ends_the_run():
    def solve(worker, master, gradient, scaler, lr, max_norm):
        del scaler["scale"]

    assert len(exercise.run_steps(SimpleNamespace(rank=0), solve, [[[1.0]]] * 2)) == 1


class Asked(elsewhere.Here):
    """Ranks that are right, but for the last one of the case with this number."""

    def __init__(self, wrong):
        self.wrong, self.asked = wrong, 0

    def launch(self, run, workers, fn, kwargs, timeout):
        found = [played(kwargs["steps"]) for _ in range(workers)]
        if self.asked == self.wrong:
            found[-1][-1]["skipped"] = "None"
        self.asked += 1
        return Runs(found)


def test_each_case_is_asked_for():
    with elsewhere.at(Asked(5)):
        assert check.scaled_step(None)
    for number, where in enumerate(
        (
            "with 1 rank: step 2, rank 0",
            "with 1 rank: step 3, rank 0",
            "with 2 ranks: step 1, rank 1",
            "with 2 ranks: step 1, rank 1",
            "with 2 ranks: step 1, rank 1",
        )
    ):
        with elsewhere.at(Asked(number)):
            assert check.scaled_step(None).finding == f"{where}: returned None"


def test_the_cases_have_one_difficulty_each():
    numbers = [[n for step in steps for row in step for n in row] for _, steps in CASES]
    assert [any(map(math.isinf, row)) for row in numbers] == [False, True, False, False, False]
    assert [any(map(math.isnan, row)) for row in numbers] == [False, False, False, True, False]
    assert abs(half(3e-7, 1) / 3e-7 - 1) > 5e-3  # the scale keeps its digits
    assert abs(half(3e-7, 1024) / (3e-7 * 1024) - 1) < 1e-3
    assert half(60, 1024) == 61_440 < torch.finfo(torch.float16).max < 2 * 61_440

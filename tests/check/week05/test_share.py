"""The bubble's share of a step: the solution passes, each mistake gets its own hint."""

import random
from fractions import Fraction

import pytest

from helpers import check
from helpers.check.week05.share import drawn as draw_share
from helpers.check.week05.share import hint_share
from notebooks.solutions import week05
from tests.check.alone import found_alone, names
from tests.check.asked import asked, drawn_anew
from tests.check.told import said


def stub(*args):
    raise NotImplementedError


def test_the_solution_passes_and_the_stub_is_told_apart():
    verdict = check.bubble_share(week05.bubble_share)
    assert verdict, verdict
    assert check.bubble_share(stub).status == "not written yet"


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.bubble_share, week05.bubble_share))


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda p, m, v: (p - 1) / (v * m), "over *work*"),
        (lambda p, m, v: (p - 1) / m, "over *work*"),
        (lambda p, m, v: p / (m + p), "Draw 2 ranks"),
        (lambda p, m, v: (p - 1) / (m + p), "work and idle time: add"),
        (lambda p, m, v: (p - 1) / (m + p - 1), "v times smaller"),
        (lambda p, m, v: (p - 1) / (m + p - 1) / v, "Divide first"),
        (lambda p, m, v: v * (p - 1) / (m + v * (p - 1)), "Upside down"),
        (lambda p, m, v: 1 - week05.bubble_share(p, m, v), "busy share"),
        (lambda p, m, v: 100 * week05.bubble_share(p, m, v), "percentage"),
        (lambda p, m, v: max(week05.bubble_share(p, m, v), 0.01), "One rank alone"),
        (lambda p, m, v: (p - 1) / v, "idle time, in units"),
        (lambda p, m, v: (p - 1) / (v * m - p + 1) if p < v * m else 0.9, "turn it round"),
        (lambda p, m, v: (p * v - 1) / (m + p * v - 1), "The share is the wait"),
        (lambda p, m, v: 0.5, "The share is the wait"),
        (lambda p, m, v: week05.bubble_share(p, m, v) * (1 + 1e-6), "The share is the wait"),
        (lambda p, m, v: week05.bubble_share(p, m, v) + (p > m) / 9, "The share is the wait"),
        (lambda p, m, v: "3/11", "one number"),
        (lambda p, m, v: True, "one number"),
    ],
)
def test_bubble_share(mistake, hint):
    said(check.bubble_share(mistake), hint)


def test_a_wrong_share_in_one_case_alone_is_found():
    """Off by 2e-9 is wrong; rounding is right."""

    def off(by):
        return lambda *sizes: week05.bubble_share(*sizes) * (1 + by) + (sizes[0] == 1) * by / 1e3

    sizes = [(4, 8, 1), (8, 32, 1), (4, 8, 2), (3, 6, 4), (2, 1, 1), (1, 4, 1), (5, 7, 1)]
    for by in (2e-9, -2e-9):
        found = found_alone(check.bubble_share, off(1e-10), off(by))
        assert names(found) == [
            f"{p} ranks, {m} micro-batches, {v} stage{'s' * (v > 1)} a rank" for p, m, v in sizes
        ]
        ends = ["3/11", "7/39", "3/19", "2/26", "1/2", "0/4", "4/11"]
        for finding, end in zip(found, ends, strict=True):
            share = float(Fraction(end))
            assert finding.endswith(f"the timeline idles {share:.6g} of the step")


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (3 / 14, "over *work*"),
        (14 / 17, "busy share"),
        (100 * 3 / 17, "not a percentage"),
        (4 / 11, "Draw 2 ranks"),
        (3 / 11, "work and idle time: add"),
        (3 / 28, "which idle units"),
        (3 / 10, "v times smaller"),
        (3 / 20, "Divide first"),
        (3 / 7, "v is missing"),
        (6 / 13, "Upside down"),
        (7 / 10, "busy share"),
        (3 / 2, "in units of a micro-batch"),
        (0.123, "The share is the wait"),
    ],
)
def test_the_hint_for_4_ranks_7_micro_batches_and_2_stages(answer, hint):
    assert hint in hint_share(answer * (1 + 5e-10), 3 / 17, 4, 7, 2)
    assert "The share is the wait" in hint_share(answer * (1 + 3e-9), 3 / 17, 4, 7, 2)


def test_the_share_that_was_turned_round_and_one_rank():
    assert "turn it round" in hint_share(2 / 5, 2 / 9, 3, 7, 1)
    assert "The share is the wait" in hint_share(9.0, 2 / 4, 3, 2, 1)  # v m = p - 1
    assert "turn it round" in hint_share(-3 / 2, 3 / 4, 4, 1, 1)
    assert "One rank alone" in hint_share(0.2, 0.0, 1, 4, 1)


def test_schedules_that_grading_draws_can_be_interleaved():
    drawn = [draw_share(random.Random(secret)) for secret in range(60)]
    assert all(micros % ranks == 0 for ranks, micros, _ in drawn)
    assert {chunks for *_, chunks in drawn} == {1, 2, 3, 4}
    assert {ranks for ranks, *_ in drawn} == {2, 3, 4, 5, 6, 7}

"""Name the rank that failed first: the solution passes, each mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.oracle import NotRight
from helpers.check.week01.culprit import (
    CASES,
    LATE,
    LOST,
    hint_culprit,
    judge_culprit,
    turned,
)
from notebooks.solutions import week01
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew


def stub(reports):
    raise NotImplementedError


def first_error(reports):
    """Also right for a dead rank; blames the victims that report before the cause."""
    for rank, report in enumerate(reports):
        if not report["alive"] or report["error"]:
            return rank
    return week01.name_culprit(reports)


def timed_out_blamed(reports):
    for rank, report in enumerate(reports):
        if report["alive"] and "timed out" in (report["error"] or ""):
            return rank
    return week01.name_culprit(reports)


def shortest_first(reports):
    lengths = [len(report["calls"]) for report in reports]
    if min(lengths) < max(lengths):
        return lengths.index(min(lengths))
    return week01.name_culprit(reports)


def longest(reports):
    lengths = [len(report["calls"]) for report in reports]
    errors = [r["error"] for r in reports if r["alive"]]
    if None in errors and min(lengths) < max(lengths):
        return lengths.index(max(lengths))
    return week01.name_culprit(reports)


def never_compares(reports):
    calls = [report["calls"] for report in reports]
    if len({len(made) for made in calls}) == 1 and not any(r["error"] for r in reports):
        return 0
    return week01.name_culprit(reports)


def dead_forgotten(reports):
    living = [dict(report, alive=True) for report in reports]
    return week01.name_culprit(living)


def error_forgotten(reports):
    """Looks at the calls alone, unless a rank is silent."""
    calls = [report["calls"] for report in reports]
    if all(report["alive"] for report in reports):
        return calls.index(min(calls, key=len))
    return week01.name_culprit(reports)


MISTAKES = [
    (first_error, "nothing at all"),
    (timed_out_blamed, "was waiting for another"),
    (shortest_first, "lost a connection"),
    (longest, "Count the calls"),
    (never_compares, "place by place"),
    (dead_forgotten, "nothing at all"),
    (error_forgotten, "lost a connection"),
    (lambda reports: None, "Return one rank"),
    (lambda reports: len(reports), "Return one rank"),
    (lambda reports: [0], "Return one rank"),
]


def test_the_solution_passes():
    verdict = check.name_culprit(week01.name_culprit)
    assert verdict, verdict


def test_the_stub_is_told_apart():
    assert check.name_culprit(stub).status == "not written yet"


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.name_culprit(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_no_constant_answer_and_no_single_rule_is_right():
    """Each rank is right somewhere and wrong somewhere; each rule of the four is needed."""
    answers = {right for _, _, right, _ in CASES}
    assert len(answers) > 2
    assert {kind for *_, kind in CASES} == {"silent", "error", "behind", "differs"}


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.name_culprit, week01.name_culprit))


def test_a_mistake_in_one_case_alone_is_found():
    def next_rank(reports):
        return (week01.name_culprit(reports) + 1) % len(reports)

    found = found_alone(check.name_culprit, week01.name_culprit, next_rank)
    assert [finding.splitlines()[0] for finding in found] == [
        "a killed process: you blame rank 3",
        "an exception on one rank: you blame rank 0",
        "an exception, and a slow rank: you blame rank 0",
        "a hang: you blame rank 3",
        "a hang that timed out: you blame rank 1",
        "another collective than the others': you blame rank 2",
        "another collective, and a rank that timed out: you blame rank 0",
        "a killed process, after the others' errors: you blame rank 1",
    ]
    assert found[1].splitlines()[1:] == [
        "  rank 0: answers, calls ['all_reduce', 'all_reduce', 'all_reduce'], error "
        "'Connection closed by peer'",
        "  rank 1: answers, calls ['all_reduce', 'all_reduce', 'all_reduce'], error "
        "'ZeroDivisionError: division by zero'",
    ]
    assert found[0].splitlines()[3] == "  rank 2: does not answer, calls []"
    with drawn_from(3):
        found = found_alone(check.name_culprit, week01.name_culprit, next_rank)
    assert len(found) == 8 + 12


def test_the_ranks_of_a_drawn_case_have_other_names():
    """The rank to blame is the one with the report that was to blame before."""
    blamed = set()
    for secret in range(40):
        where, reports, right, _ = turned(random.Random(secret))
        known = {words: (before, rank) for words, before, rank, _ in CASES}
        before, rank = known[where]
        assert reports[right] == before[rank]
        assert len(reports) == len(before)
        assert week01.name_culprit(reports) == right
        blamed.add((where, right))
    assert len(blamed) > 12


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (LOST, "silent", "nothing at all"),
        (LOST, "error", "lost a connection"),
        (f"barrier {LATE}", "differs", "For which rank did it wait"),
        (None, "error", "comes before any count"),
        (None, "behind", "Count the calls"),
        (None, "differs", "place by place"),
    ],
)
def test_the_hint_for_a_kind_and_a_blamed_rank(error, kind, hint):
    assert hint in hint_culprit({"error": error}, kind)


def test_a_rank_that_does_not_exist_is_no_answer():
    reports, right, kind = CASES[0][1:]
    for answer in (-1, 4, True, 1.5):
        with pytest.raises(NotRight, match="returned") as wrong:
            judge_culprit(answer, reports, right, kind)
        assert wrong.value.hint == "Return one rank, a number from 0 to 3."
    judge_culprit(2.0, reports, right, kind)

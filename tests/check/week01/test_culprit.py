"""Name the rank that failed first: the solution passes, each mistake gets its own hint."""

import pytest

from helpers import check
from helpers.check.week01.culprit import CASES
from notebooks.solutions import week01
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

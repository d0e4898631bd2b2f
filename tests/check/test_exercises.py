"""Every exercise of the course: the solution passes, and each mistake is told from every other.

A mistake is a row of the exercise's own table. The check gets it as a student's answer, and has to
find it, with the usual inputs and with drawn ones.
"""

import importlib

import pytest
import torch

from helpers import check
from helpers.check import hidden, ranks
from helpers.check.exercise import Exercise
from helpers.check.grading.submissions import NOT_GRADED
from helpers.check.ranks import OnRanks

pytestmark = pytest.mark.usefixtures("shared_ranks")
SECRETS = (None, 20_261)  # of the inputs: the student's own, and drawn ones


def exercise(name) -> Exercise | None:
    """The exercise as data; None for those that have a shape of their own."""
    found = getattr(importlib.import_module(f"helpers.check.{check._PLACE[name]}"), name)
    return found if isinstance(found, Exercise) else None


NAMES = [name for name in check._PLACE if name not in check._NO_EXERCISE]
DATA = [name for name in NAMES if exercise(name) and name not in NOT_GRADED]
ON_RANKS = [name for name in DATA if isinstance(exercise(name), OnRanks)]
ROWS = [(name, number) for name in DATA for number in range(len(exercise(name).mistakes()))]
FAILING = [
    (name, number)
    for name in DATA
    for number, row in enumerate(getattr(exercise(name), "failures", ()))
    if row[2]
]


def solution(name):
    week = check._PLACE[name][:6]
    return getattr(importlib.import_module(f"notebooks.solutions.{week}"), name)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", DATA)
def test_the_solution_passes(name, secret):
    with hidden.drawn_from(secret):
        verdict = exercise(name)(solution(name))
    assert verdict, verdict
    assert verdict.exercise == name


@pytest.mark.parametrize("name", DATA)
def test_a_stub_is_told_apart(name):
    def stub(*_):
        raise NotImplementedError

    assert exercise(name)(stub).status == "not written yet"


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, n in ROWS if n == 0 or name not in ON_RANKS]
)
def test_each_mistake_gets_its_own_hint(name, number):
    data = exercise(name)
    mistake, hint = data.mistakes()[number]
    for secret in SECRETS if name not in ON_RANKS else SECRETS[:1]:
        with hidden.drawn_from(secret):
            finds(data(mistake), hint)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", ON_RANKS)
def test_each_mistake_on_ranks_gets_its_own_hint(name, secret):
    """All mistakes run together, in one launch for each number of ranks."""
    data = exercise(name)
    with hidden.drawn_from(secret):
        for traces, hint in data.wrongs(data.asked()):
            rest = iter(traces)
            finds(data.judged(lambda _, rest=rest: next(rest)), hint)


def finds(verdict, hint):
    assert verdict.status == "wrong", hint
    assert verdict.hint == hint, verdict
    assert readable(verdict.finding), verdict


def readable(finding: str) -> bool:
    lines = finding.splitlines()
    return bool(lines) and "cannot compare" not in finding and max(map(len, lines)) < 400


@pytest.mark.parametrize(("name", "number"), FAILING)
def test_each_mistake_that_fails_or_hangs_gets_its_own_hint(name, number, monkeypatch):
    monkeypatch.setattr(ranks, "TIMEOUT", 2.0)
    data = exercise(name)
    _, hint, mistake = data.failures[number]
    verdict = data(mistake)
    assert verdict.status == "wrong"
    assert verdict.hint == hint, verdict


@pytest.mark.parametrize("name", [name for name in DATA if name not in ON_RANKS])
def test_a_wrong_answer_that_nobody_thought_of_gets_a_hint(name):
    data = exercise(name)
    for answer in (None, 3.25, "x", (1, 2), [[]], {}, -1, 10**400, 1j, float("nan"), object()):
        verdict = data(lambda *_, answer=answer: answer)
        assert verdict.status == "wrong"
        assert readable(verdict.finding), verdict
        assert verdict._repr_html_()


def off(value):
    """The value with wrong numbers; the same where it has none."""
    if isinstance(value, torch.Tensor):
        return value + 1 if value.numel() else value
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list | tuple):
        return type(value)(map(off, value))
    return {key: off(one) for key, one in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", ON_RANKS)
def test_wrong_numbers_on_any_rank_are_found(name):
    data, found = exercise(name), 0
    for case in data.asked():
        right = data.expected(case)
        assert data.problem(right, case) is None
        for facet in set(right) - set(data.free):
            for rank, value in enumerate(right[facet]):
                if repr(off(value)) != repr(value):
                    found += 1
                    row = list(right[facet])
                    row[rank] = off(value)
                    facet_found, wrong = data.problem({**right, facet: tuple(row)}, case)
                    assert facet_found in (facet, "calls")
                    assert f"rank {rank}" in wrong.finding
    assert found

"""Every exercise of the course: the solution passes, and each mistake is told from every other.

A mistake is a row of the exercise's own table. The check gets the first as a student's answer, the
others as what they leave behind. It has to find each with the usual inputs, and name it. With drawn
inputs, a third of the rows has to be found.
"""

import importlib
import inspect
import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from helpers import check
from helpers.check import hidden, ranks
from helpers.check.exercise import RAISED, Edit, Exercise
from helpers.check.grading.submissions import NOT_GRADED
from helpers.check.ranks import OnRanks

pytestmark = pytest.mark.usefixtures("shared_ranks", "as_predicted")
SECRET = 20_261  # of the drawn inputs


@cache
def exercise(name) -> Exercise:
    """The exercise, which makes its cases once: so what is right is computed once for all tests."""
    data, made = replace(inspect.unwrap(getattr(check, name))), {}

    def asked():
        secret = hidden.secret()
        if secret not in made:
            made[secret] = type(data).asked(data)
        return made[secret]

    object.__setattr__(data, "asked", asked)
    return data


LEFT_OUT = {*check._NO_EXERCISE, *NOT_GRADED}
DATA = [name for name in check._PLACE if name not in LEFT_OUT]
ON_RANKS = [name for name in DATA if isinstance(exercise(name), OnRanks)]
HERE = [name for name in DATA if name not in ON_RANKS]
FAILING = [
    (name, number)
    for name in DATA
    for number, row in enumerate(getattr(exercise(name), "failures", ()))
    if row[2]
]


def solution(name):
    week = check._PLACE[name][:6]
    return getattr(importlib.import_module(f"notebooks.solutions.{week}"), name)


# A model of one size is trained, numbers at the edges of fp16 are what they are, and a contest is
# about one model on one cluster.
ALWAYS_THE_SAME = {"choose_wrapping", "scaled_step", "better_plan"}


@pytest.mark.parametrize("name", DATA)
def test_the_solution_passes_with_drawn_inputs(name):
    """With its own inputs, tests/notebooks/test_exercises.py tries it, and the stub.

    The two inputs differ: else answers that are learnt by heart would pass. Off ranks, what is
    drawn is an argument: a sandbox draws nothing.
    """
    data, asked = exercise(name), []
    with hidden.drawn_from(SECRET):
        verdict = data(solution(name))
    assert verdict, verdict
    assert verdict.exercise == name
    for secret in (SECRET, None):
        with hidden.drawn_from(secret):
            expected = [data.expected(case) for case in data.asked() if name in ON_RANKS]
            asked.append(repr(([case.arguments for case in data.asked()], expected)))
    assert asked[0] != asked[1] or name in ALWAYS_THE_SAME


@pytest.mark.parametrize("name", [name for name in DATA if exercise(name).mistakes()])
def test_each_mistake_gets_its_own_hint(name):
    """From the traces that the check has of them; those on ranks run in one launch."""
    data = exercise(name)
    mistakes = data.mistakes()
    finds(data(mistakes[0][0]), mistakes[0][1])
    for traces, hint in data.wrongs(data.asked())[1 : len(mistakes)]:
        rest = iter(traces)
        finds(data.judged(lambda _, rest=rest: next(rest)), hint)


@pytest.mark.parametrize("name", [name for name in DATA if exercise(name).mistakes()])
def test_mistakes_are_found_with_drawn_inputs(name):
    data = exercise(name)
    third = replace(data, slips=data.slips[::3], kept=dict(data.kept))
    object.__setattr__(third, "fixed", lambda cases: ())
    with hidden.drawn_from(SECRET):
        cases = data.asked()
        for traces, hint in third.wrongs(cases):
            assert any(map(third.problem, traces, cases)), hint


def finds(verdict, hint):
    assert verdict.status == "wrong", hint
    assert verdict.hint == hint, verdict
    assert readable(verdict.finding), verdict


def readable(finding: str) -> bool:
    lines = finding.splitlines()
    return bool(lines) and "cannot compare" not in finding and max(map(len, lines)) < 400


@pytest.mark.parametrize("name", [name for name in DATA if getattr(exercise(name), "about", None)])
def test_a_facet_that_no_mistake_explains_gets_its_own_hint(name):
    data, hints = exercise(name), {}
    rights = [data.expected(case) for case in data.asked()]
    for facet in (*rights[0], RAISED):
        words = next(filter(facet.endswith, data.about), None)
        if words and words not in hints:
            traces = iter([rights[0] | {facet: ("?",) * 9}, *rights[1:]])
            hints[words] = data.judged(lambda _, rest=traces: next(rest)).hint
    assert hints == data.about


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("free, references", "1 / 0; free, references", ": your function raised ZeroDivisionError"),
        ("tables[fork] =", "1 / 0; tables[fork] =", ": operation 4, 'fork a as f' raised Zero"),
        ("needs a block, but none is free", "has to wait", "passed"),
    ],
)
def test_what_an_error_in_an_operation_says(old, new, said):
    data = exercise("block_allocator")
    assert said in repr(data(Edit(old, new).of(data.right)))


@pytest.mark.parametrize(("name", "number"), FAILING)
def test_each_mistake_that_fails_or_hangs_gets_its_own_hint(name, number, monkeypatch):
    monkeypatch.setattr(ranks, "TIMEOUT", 2.0)
    data = exercise(name)
    _, hint, mistake = data.failures[number]
    verdict = data(data.made(mistake))
    assert verdict.status == "wrong"
    assert verdict.hint == hint, verdict


NAN = float("nan")
NOTHING = (
    *(None, 3.25, "x", (1, 2), {}, -1, 10**400, 1j, math.inf, True, len),
    *((NAN, NAN), torch.empty(0), np.empty(0), (torch.full((1,), NAN),) * 2),
)


@pytest.mark.parametrize("name", HERE)
def test_a_wrong_answer_that_nobody_thought_of_gets_a_hint(name):
    data = exercise(name)
    places = [data.where(case) for case in data.asked()]
    for answer in NOTHING:
        verdict = data(lambda *_, answer=answer: answer)
        assert verdict.status == "wrong", answer
        assert readable(verdict.finding), verdict
        assert verdict.finding not in places, verdict  # it also says what is wrong there
        assert verdict._repr_html_()


def plus_one(value):
    """The value with wrong numbers; the same where it has none."""
    return changed(value, lambda number: number + 1, lambda tensor: tensor + 1)


@pytest.mark.parametrize("name", ON_RANKS)
def test_wrong_numbers_on_any_rank_are_found(name):
    data, found = exercise(name), 0
    for case in data.asked():
        right = data.expected(case)
        assert data.problem(right, case) is None
        for facet in right:
            if facet.startswith("messages"):
                assert facet.replace("messages", "unwaited") in right
        for facet in set(right) - set(data.free):
            for rank, value in enumerate(right[facet]):
                if repr(plus_one(value)) != repr(value):
                    found += 1
                    row = list(right[facet])
                    row[rank] = plus_one(value)
                    facet_found, wrong = data.problem({**right, facet: tuple(row)}, case)
                    assert facet_found in (facet, "calls")
                    assert f"rank {rank}" in wrong.finding
    assert found


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("row_linear", "y = summed(x @ own.t()) + bias"),
        ("row_linear", "of_x = of_y @ own"),
        ("shard_flat", "whole = shard.new_empty(len(shard) * n)"),
        ("zero_1", "own /= n"),
        ("pipeline_step", "inputs, outputs, total = [], [], 0.0"),
        ("scaled_step", "total = gradient.float()"),
        ("broadcast_state", "old = tensor.detach()"),
    ],
)
def test_a_message_that_nobody_waits_for_is_found(name, line):
    """In the call, and in a function that the call returns."""
    data = exercise(name)
    begun = Edit(line, f"{line}; dist.all_reduce(torch.zeros(1), async_op=True)")
    verdict = data(begun.of(data.right))
    assert re.search(r"returned before [16] messages were over", verdict.finding)


def changed(value, number, tensor):
    """The value, with every number in it and every tensor changed."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float | np.number):
        return number(value)
    if type(value) in (list, tuple):
        return type(value)(changed(one, number, tensor) for one in value)
    if isinstance(value, dict):
        return {key: changed(one, number, tensor) for key, one in value.items()}
    return value


SPOILT = {
    "nan": (lambda n: NAN, lambda t: t.double() * NAN),
    "of one more dim": (lambda n: [n], lambda t: t[None]),
    "empty": (lambda n: [], lambda t: t.flatten()[:0]),
    "complex": (lambda n: n + 1j, lambda t: t + 1j),
    "one number for all": (lambda n: 3 * n + 1, lambda t: t.flatten()[:1]),
}
# They write into their arguments, or answer with words: there is nothing to spoil.
WORDS = {"find_flaw", "master_adam", "block_allocator", "fuse_messages", "order_1f1b", "place_axes",
         "fused_update", "round_stochastically", "commit", "spot_policy",
         "better_plan"}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in HERE if name not in WORDS])
@pytest.mark.parametrize("what", SPOILT)
def test_a_right_answer_that_was_spoilt_is_wrong(name, what):
    right = solution(name)
    verdict = exercise(name)(lambda *given: changed(right(*given), *SPOILT[what]))
    assert verdict.status == "wrong"
    assert "cannot compare" not in verdict.finding, verdict.finding

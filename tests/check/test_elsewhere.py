"""A check runs the student's function at the place that was set, and here by default."""

import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

from helpers.check import elsewhere
from helpers.check.exercise import Exercise
from helpers.runtime.failure import WorkerError


class Other:
    """A place that only notes what it is asked."""

    def __init__(self, answer):
        self.answer, self.calls = answer, []

    def call(self, fn, arguments):
        self.calls.append(arguments)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def direct():
    return Exercise(name="add", right=lambda x, y: x + y, cases=[("first", (1, 2))])(None)


def test_another_place_is_asked_and_its_failures_are_findings():
    """Those of ranks: see test_ranks.py."""
    with elsewhere.at(place := Other({"returned": 3})):
        assert direct()
    assert place.calls == [(1, 2)]
    with elsewhere.at(Other({"returned": 4})):
        assert direct().finding == "first: returned 4; it is 3"
    with elsewhere.at(Other(elsewhere.Failed("it used too much memory"))):
        verdict = direct()
        assert verdict.finding == "first: it used too much memory"
        assert verdict.status == "wrong"
    with elsewhere.at(Other(NotImplementedError())):
        assert direct().status == "not written yet"


def test_afterwards_it_is_here_again():
    here = elsewhere.place()
    with pytest.raises(ZeroDivisionError), elsewhere.at(Other(3)):
        1 / 0  # noqa: B018
    assert elsewhere.place() is here
    assert here.call(lambda x: x + 1, (2,)) == 3
    with elsewhere.at(outer := Other(3)):
        with elsewhere.at(Other(4)):
            pass
        assert elsewhere.place() is outer


def test_a_call_here_is_quiet_and_has_a_limit(monkeypatch):
    """A finding shows what came out: a warning would only stand beside it."""
    inside = []

    @contextmanager
    def limited(seconds):
        inside.append(seconds)
        yield
        inside.append("ended")

    monkeypatch.setattr(elsewhere, "limit", limited)

    def logarithm(x, y):
        inside.append("called")
        return np.log(x) / y

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert elsewhere.Here().call(logarithm, (np.zeros(1), 2)) == -np.inf
        assert inside == [60, "called", "ended"]
        assert np.isnan(elsewhere.Here().call(logarithm, (-np.ones(1), 2)))
        assert elsewhere.Here().call(logarithm, (np.ones(1) * 2, 1e-323)) == np.inf


def test_ranks_here_get_the_function_as_solve(monkeypatch):
    calls = []
    monkeypatch.setattr(elsewhere, "launch", lambda *args, **more: calls.append((args, more)))
    elsewhere.Here().launch(len, 3, max, {"rows": 4, "seed": 5}, 7.5)
    given = {"device": "cpu", "timeout": 7.5, "solve": max, "rows": 4, "seed": 5}
    assert calls == [((len, 3), given)]


def test_the_patience_with_ranks_is_the_check_s():
    def run(worker, solve):
        solve(60)

    with pytest.raises(WorkerError, match=r"no sign of life .* for 0.5 s"):
        elsewhere.Here().launch(run, 1, time.sleep, {}, timeout=0.5)

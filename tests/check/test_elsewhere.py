"""A check runs the student's function at the place that was set, and here by default."""

import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

from helpers.check import elsewhere
from helpers.runtime.failure import WorkerError


def test_afterwards_it_is_here_again():
    here = elsewhere.place()
    with pytest.raises(ZeroDivisionError), elsewhere.at("there"):
        1 / 0  # noqa: B018
    assert elsewhere.place() is here
    assert here.call(lambda x: x + 1, (2,)) == 3
    with elsewhere.at(outer := "there"):
        with elsewhere.at("elsewhere"):
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


def test_ranks_here_get_the_function_as_solve_and_the_check_s_patience():
    def run(worker, solve, rows):
        solve(rows)

    with pytest.raises(WorkerError, match=r"no sign of life .* for 0.5 s"):
        elsewhere.Here().launch(run, 1, time.sleep, {"rows": 60}, 0.5)

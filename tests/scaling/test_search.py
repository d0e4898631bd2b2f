"""The grid of starts, and the choice of the points that continue."""

import numpy as np
import pytest

from helpers.scaling import search
from helpers.scaling.objective import Objective
from helpers.scaling.search import grid, lowest_apart, minima


def test_lowest_first_and_no_two_alike():
    points = np.array([[0.0, 0.0], [1.0, 1.0], [1e-9, 0.0], [2.0, 0.0], [1e-3, 0.0]])
    f = np.array([3.0, 2.0, 1.0, 4.0, 5.0])
    # the first is dropped: the third is near it, and lower; the last is not near
    assert lowest_apart(points, f, 9).tolist() == [2, 1, 3, 4]
    assert lowest_apart(points, f, 2).tolist() == [2, 1]


def test_the_lowest_starts_continue(monkeypatch):
    """Two wells; the starts near the deeper one come last."""

    class Wells:
        """f = (x^2 - 1)^2 - x / 4, of one number."""

        def inward(self, theta):
            return np.array(theta)

        outward = inward

        def value(self, points, weights=None):
            return ((points**2 - 1) ** 2 - points / 4).sum(-1)

        def derivatives(self, points, weights=None):
            gradient = 4 * points * (points**2 - 1) - 0.25
            hessian, bound = (12 * points**2 - 4)[..., None], (12 * points**2 + 4)[..., None]
            return self.value(points), gradient, hessian, bound

    monkeypatch.setattr(search, "KEPT", 2)
    starts = np.array([[-0.9], [-1.1], [-1.2], [0.9], [1.2]])
    theta, f, _ = minima(Wells(), starts)
    assert theta[0, 0] == pytest.approx(1.03, abs=0.01)
    assert f[0] == f.min()
    # two points that meet only in the last steps are one minimum, with one steepness
    for steps in ("FIRST", "MIDDLE"):
        monkeypatch.setattr(search, steps, 1)
    theta, f, steepness = minima(Wells(), starts)
    assert len(theta) == len(f) == len(steepness) == 1


def test_the_lowest_minimum_comes_first_and_is_one(sweep):
    objective = Objective.of(*sweep(0, runs=60), 1e-3)
    theta, f, steepness = minima(objective, grid()[::9])
    assert f[0] == f.min()
    assert (np.diff(f) >= 0).all()
    assert steepness[0] < 1e-9
    around = objective.inward(theta[:1]) + 1e-5 * np.vstack([np.eye(5), -np.eye(5)])
    assert (objective.value(around) > f[0]).all()

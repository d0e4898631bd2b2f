"""The descent on functions with known minima, the grid of starts, and the points that continue."""

import numpy as np
import pytest

from helpers.scaling import search
from helpers.scaling.objective import Objective
from helpers.scaling.search import LONGEST, STEEP, descend, grid, lowest_apart, minima


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


class Bowl:
    """f = (x - least)^T M (x - least) / 2; counts the calls of `derivatives`."""

    def __init__(self, least, matrix):
        self.least, self.matrix, self.calls = np.array(least), np.array(matrix), 0

    def value(self, points, weights=None):
        away = points - self.least
        return 0.5 * np.einsum("sz,zk,sk->s", away, self.matrix, away)

    def derivatives(self, points, weights=None):
        self.calls += 1
        matrices = np.broadcast_to(self.matrix, (len(points), *self.matrix.shape))
        return self.value(points), (points - self.least) @ self.matrix, matrices, matrices


class DoubleWell:
    """f = (x^2 - 1)^2: minima at 1 and -1, and a maximum at 0, where the Hessian is negative."""

    def value(self, points, weights=None):
        return ((points**2 - 1) ** 2).sum(-1)

    def derivatives(self, points, weights=None):
        gradient = 4 * points * (points**2 - 1)
        hessian = (12 * points**2 - 4)[..., None]
        bound = (12 * points**2 + 4)[..., None]
        return self.value(points), gradient, hessian, bound


@pytest.mark.parametrize("newton", [True, False])
def test_a_badly_scaled_bowl_is_left_at_its_lowest_point(newton):
    bowl = Bowl([3.0, -2.0], [[1e4, 9.0], [9.0, 1e-1]])
    starts = np.array([[0.0, 0.0], [-5.0, 7.0], [3.0, -2.0]])
    points, f, steepness = descend(bowl, starts, newton=newton, steps=200)
    assert points == pytest.approx(np.tile(bowl.least, (3, 1)), abs=1e-8)
    assert f == pytest.approx(np.zeros(3), abs=1e-16)
    assert (steepness < 1e-9).all()
    assert starts[0].tolist() == [0.0, 0.0]  # the caller's array is unchanged


def test_each_start_goes_to_the_well_on_its_side():
    starts = np.array([[0.3], [-0.2], [5.0], [-4.0]])
    points, f, _ = descend(DoubleWell(), starts, newton=True, steps=100)
    assert points[:, 0] == pytest.approx([1, -1, 1, -1], abs=1e-9)
    assert f == pytest.approx(np.zeros(4), abs=1e-18)


def test_no_point_is_replaced_by_a_higher_one_nor_steps_too_far():
    well, points = DoubleWell(), np.linspace(-6, 6, 41)[:, None]
    before = well.value(points)
    for _ in range(10):
        after, _, _ = descend(well, points, newton=True, steps=1)
        assert (well.value(after) <= before).all()
        assert np.abs(after - points).max() <= LONGEST * (1 + 1e-12)
        points, before = after, well.value(after)


def test_a_point_at_its_minimum_takes_no_further_step():
    bowl = Bowl([1.0], [[2.0]])
    descend(bowl, np.array([[1.0]]), newton=True, steps=50)
    assert bowl.calls == 1
    assert STEEP < 1e-9


class Springs:
    """f = sum_i w_i (x - at_i)^2 / 2: the minimum is the weighted mean."""

    at = np.array([0.0, 1.0, 4.0])

    def value(self, points, weights=None):
        return (weights * (points - self.at) ** 2).sum(-1) / 2

    def derivatives(self, points, weights=None):
        gradient = (weights * (points - self.at)).sum(-1)
        matrix = weights.sum(-1)[:, None, None]
        return self.value(points, weights), gradient[:, None], matrix, matrix


def test_each_point_keeps_its_own_weights():
    """The second point is at its minimum, so it leaves the others first."""
    weights = np.array([[1.0, 1, 1], [0, 1, 0], [2, 0, 6]])
    points, f, _ = descend(
        Springs(), np.array([[9.0], [1.0], [-2.0]]), newton=True, steps=60, weights=weights
    )
    assert points[:, 0] == pytest.approx([5 / 3, 1, 3], abs=1e-9)
    assert f == pytest.approx([13 / 3, 0, 12])


def test_only_newton_is_fast_near_a_minimum():
    left = {
        newton: descend(DoubleWell(), np.array([[1.1]]), newton=newton, steps=8)[2][0]
        for newton in (True, False)
    }
    assert left[True] < 1e-9 < left[False]


def test_a_point_that_no_step_improves_is_given_up():
    class Misled(Bowl):
        """The gradient points the wrong way."""

        def derivatives(self, points, weights=None):
            value, gradient, *matrices = super().derivatives(points)
            return value, -gradient, *matrices

    bowl, start = Misled([0.0], [[1.0]]), np.array([[1.0]])
    points, f, _ = descend(bowl, start, newton=True, steps=1000)
    assert (points.tolist(), f.tolist()) == ([[1.0]], [0.5])
    assert bowl.calls < 50

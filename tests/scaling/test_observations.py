"""The input of a fit is checked once, and the error names the row."""

import numpy as np
import pytest

from helpers.scaling.observations import distinct, observations


def test_columns_come_back_as_arrays():
    params, loss = observations(params=[1, 2], loss=(3.5, 4))
    assert params.dtype == loss.dtype == np.float64
    assert (params.tolist(), loss.tolist()) == ([1.0, 2.0], [3.5, 4.0])


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
def test_the_first_wrong_row_is_named(value):
    with pytest.raises(ValueError, match=r"row 1: loss is .*\(and 1 more rows\)"):
        observations(params=[1, 2, 3, 4], loss=[1, value, 2, value])


@pytest.mark.parametrize(
    "columns", [{"a": [1], "b": [1, 2]}, {"a": [], "b": []}, {"a": [[1.0]], "b": [[1.0]]}]
)
def test_lists_that_do_not_belong_together(columns):
    with pytest.raises(ValueError, match="equally long and not empty: a ") as error:
        observations(**columns)
    shapes = [f"{name} {np.shape(values)}" for name, values in columns.items()]
    assert str(error.value).endswith(": " + ", ".join(shapes))


def test_the_message_names_one_row_and_its_first_wrong_column():
    with pytest.raises(ValueError, match=r"^row 2: tokens is 0; it must be positive and finite$"):
        observations(params=[1, 2, 3], tokens=[1, 2, 0], loss=[1, 2, -1])


def test_values_that_hardly_differ_count_once():
    assert distinct(np.array([100.0, 101.0, 200.0, 199.0, 300.0])) == 3
    assert distinct(np.array([7.0])) == 1
    assert distinct(np.array([1.0, 1.021])) == 2
    # each is near the one before, but the last is not near the first
    assert distinct(np.array([1.031, 1.0, 1.015])) == 2

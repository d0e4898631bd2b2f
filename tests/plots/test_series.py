"""Frames, mappings, sequences and functions become named series of points."""

import pandas as pd
import pytest

from helpers.plots.series import named_series

FRAME = pd.DataFrame({"step": [0, 1, 0, 1], "rank": [0, 0, 1, 1], "loss": [4.0, 3.0, 5.0, 2.0]})


def test_a_frame_by_rank():
    found = named_series(FRAME, x="step", y="loss", by="rank")
    assert found == {"rank 0": ([0, 1], [4.0, 3.0]), "rank 1": ([0, 1], [5.0, 2.0])}
    upside_down = named_series(FRAME[::-1], x="step", y="loss", by="rank")
    assert list(upside_down) == ["rank 0", "rank 1"]


def test_a_frame_of_columns_over_its_index():
    table = pd.DataFrame({"weak": [1.0, 0.5], "strong": [1.0, 0.2]}, index=[8, 64])
    assert named_series(table) == {"weak": ([8, 64], [1.0, 0.5]), "strong": ([8, 64], [1.0, 0.2])}
    assert list(named_series(FRAME, x="step")) == ["rank", "loss"]
    gaps = pd.DataFrame({"x": [3, 1], "y": [float("nan"), 2.0], "rank": [0, 0]})
    assert list(map(str, named_series(gaps, x="x", y="y", by="rank")["rank 0"])) == (
        ["[3, 1]", "[nan, 2.0]"]  # each point is kept, in its order
    )
    plain = pd.DataFrame([[7, 5], [8, 6]])  # its columns are 0 and 1
    assert named_series(plain, x=0, y=1) == {"": ([7, 8], [5, 6])}
    assert named_series(plain, x=1, y=0) == {"": ([5, 6], [7, 8])}
    assert named_series(plain, x=1, y=1, by=0) == {"0 7": ([5], [5]), "0 8": ([6], [6])}


def test_a_mapping_of_all_sorts():
    data = {
        "pair": ([1, 2], [3, 4]),
        "list": [5, 6],
        "series": pd.Series([7, 8], index=[3, 4]),
        "formula": lambda x: 2 * x,
    }
    assert named_series(data, x=[10, 20])["formula"] == ([10, 20], [20, 40])
    assert named_series(data, x=[10, 20])["list"] == ([10, 20], [5, 6])
    assert named_series(data, x=[10, 20])["pair"] == ([1, 2], [3, 4])
    assert named_series(data, x=[10, 20])["series"] == ([3, 4], [7, 8])
    table = pd.DataFrame({"weak": [1.0, 0.5], "strong": [1.0, 0.2]}, index=[8, 64])
    assert list(named_series({"ours": table, 3: [1]})) == ["ours weak", "ours strong", "3"]
    by_rank = named_series({"ours": FRAME}, x="step", y="loss", by="rank")
    assert list(by_rank) == ["ours rank 0", "ours rank 1"]
    assert by_rank["ours rank 1"] == ([0, 1], [5.0, 2.0])
    frames = {"right": FRAME}
    assert named_series(frames, x="step", y="loss") == {"right": ([0, 1, 0, 1], [4, 3, 5, 2])}


def test_one_sequence_has_no_name():
    assert named_series([3, 2]) == {"": ([0, 1], [3, 2])}
    assert named_series(([5, 6], [3, 2])) == {"": ([5, 6], [3, 2])}
    assert named_series((5, 6)) == {"": ([0, 1], [5, 6])}  # a tuple of two numbers is no pair
    assert named_series([[5, 6], [3, 2]]) == {"": ([0, 1], [[5, 6], [3, 2]])}  # nor is a list
    assert named_series(((1, 2), (3, 4), (5, 6))) == {"": ([0, 1, 2], [(1, 2), (3, 4), (5, 6)])}
    assert named_series(pd.Series([7, 8], index=[3, 4])) == {"": ([3, 4], [7, 8])}
    assert named_series(iter([3, 2]), x=iter([8, 9])) == {"": ([8, 9], [3, 2])}


@pytest.mark.parametrize(
    ("data", "x", "message"),
    [
        ({}, None, "no series"),
        ({"a": [1, 2, 3]}, [1, 2], "series 'a' has 2 x values and 3 y values"),
        ({"a": [1, 2], "b": [1]}, [1, 2], "series 'b' has 2 x values and 1 y values"),
        ({"a": [1, 2]}, [1, 2, 3], "series 'a' has 3 x values and 2 y values"),
        ({"f": abs}, None, "series 'f' is a function"),
    ],
)
def test_what_cannot_be_drawn(data, x, message):
    with pytest.raises(ValueError, match=message):
        named_series(data, x=x)


def test_one_column_over_the_index():
    table = pd.DataFrame({"weak": [1.0, 0.5], "strong": [1.0, 0.2]}, index=[8, 64])
    assert named_series(table, y="strong") == {"": ([8, 64], [1.0, 0.2])}
    with pytest.raises(ValueError, match="no series"):
        named_series(pd.DataFrame({"step": [1]}), x="step")

"""The table of a prediction: what it says in each case."""

import pytest

from helpers.check.prediction import number, side_by_side


@pytest.mark.parametrize(
    ("prediction", "comment"),
    [
        (None, "write your prediction"),
        (24, "as predicted"),
        (25.0, "close"),
        (48, "you said 2 times"),
        (12, "you said 1/2 of"),
        (0, "not what was measured"),
    ],
)
def test_comment(prediction, comment):
    row = side_by_side("bytes", prediction=prediction, formula=24, measured=24)
    assert comment in repr(row)
    assert comment in row._repr_html_()


def test_measured_zero():
    assert "not what" in side_by_side("x", prediction=3, measured=0).comment()
    assert side_by_side("x", prediction=0, measured=0).comment() == "as predicted"


def test_a_prediction_is_a_number():
    with pytest.raises(TypeError, match="number"):
        side_by_side("x", prediction="24 MB", measured=24)
    with pytest.raises(TypeError, match="beside it"):
        side_by_side("x", prediction=24)


def test_each_number_says_where_it_comes_from():
    row = side_by_side("x", prediction=4, published=2, formula=3, measured=5)
    assert row.cells() == {
        "your prediction": "4",
        "formula": "3",
        "published": "2",
        "measured here": "5",
    }
    assert "1/1.25 of what was measured" in row.comment()
    row = side_by_side("x", prediction=4, formula=3, published=2)
    assert "measured" not in repr(row)
    assert "2 times the published number" in row.comment()
    assert "not the simulated number" in side_by_side("x", prediction=0, simulated=2).comment()


def test_names_are_escaped():
    html = side_by_side("a < b", prediction=1, measured=2, unit="<i>")._repr_html_()
    assert "a &lt; b" in html
    assert "<i>" not in html


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "?"), (24, "24"), (1234567, "1,234,567"), (2.5, "2.5"), (3.8e25, "3.8e+25")],
)
def test_number(value, text):
    assert number(value) == text

"""One question: what counts as a prediction, and how its numbers read."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.check.question import Question, number, plain


def question(prediction, **numbers):
    return Question(what="x", prediction=prediction, numbers=numbers or {"measured": 24}, unit="MB")


@pytest.mark.parametrize(
    "prediction",
    ["24 MB", "24", True, [24], float("nan"), float("inf"), -1e301, 10**400, ..., 3j],
)
def test_what_is_no_number_gets_a_kind_line(prediction):
    asked = question(prediction)
    assert not asked.predicted
    assert "is not a number. Write a number of MB without quotes" in asked.comment()
    assert "24" not in asked.comment().replace(repr(prediction), "")


def test_a_long_prediction_is_cut():
    assert len(question(list(range(1000))).comment()) < 150
    assert question("x" * 38).complaint.startswith(f"'{'x' * 38}' is not")
    assert question("x" * 39).complaint.startswith(f"'{'x' * 38}… is not")


def test_the_unit_stands_in_the_title_and_in_the_advice():
    bare = Question(what="x", prediction="y", numbers={"measured": 3})
    assert (question(1).title, bare.title) == ("x (MB)", "x")
    assert bare.complaint == (
        "'y' is not a number. Write a number without quotes, for example 12 or 3.4e5."
    )
    assert bare.comment() == bare.complaint
    assert question(1).complaint == question(None).complaint == ""


def test_where_the_answer_is_a_word_any_answer_is_a_prediction():
    for prediction in ("a", 3, [3], True):
        assert question(prediction, measured="b").predicted
        assert question(prediction, measured=False).predicted
    assert not question("a", measured=1).predicted


def test_the_cells_of_a_row():
    row = question(1234, formula=5.5, measured="hang").cells()
    assert list(row.items()) == [
        ("your prediction", "1,234"), ("formula", "5.5"), ("measured here", "hang"),
    ]  # fmt: skip
    assert question("1 MB").cells() == {"measured here": "24"}
    assert question(5, formula=5, published=50).judged_by == ("published", 50)


def test_not_yet_predicted():
    assert not question(None).predicted
    assert question(None).comment() == "Not predicted yet."
    assert list(question(None).cells()) == ["measured here"]


def test_zero_is_a_prediction():
    assert question(0).predicted
    assert question(0).cells()["your prediction"] == "0"
    assert question(-1e300).predicted


def test_far_predictions_get_a_question():
    assert question(12).comment().endswith("Which assumption makes the difference?")
    assert question(13).comment().endswith("below the measured value.")
    for prediction in ("a", 3):
        assert question(prediction, measured="b").comment() == "Different from the measured value."


def test_the_last_source_judges():
    assert question(5, formula=5, measured=50).comment().startswith("The measured value is 10")
    assert question(5, measured=5, published=50).comment().startswith("The published value is 10")


@pytest.mark.parametrize("value", [None, [1], float("nan"), float("inf")])
def test_an_answer_is_a_number_or_a_word(value):
    with pytest.raises(TypeError, match="formula= needs a number"):
        question(1, formula=value)
    with pytest.raises(TypeError, match="nothing to compare with"):
        Question(what="x", prediction=1, numbers={})


def test_plain():
    assert plain(torch.tensor(3.5)) == 3.5
    assert type(plain(np.float32(2))) is float
    assert type(plain(np.int64(2))) is int
    assert type(plain(Fraction(1, 2))) is float
    assert plain(Fraction(1, 2)) == 0.5
    assert plain(torch.tensor([[7]])) == 7
    assert plain(torch.ones(2)).shape == (2,)
    assert plain(np.ones(2)).shape == (2,)
    assert plain("a") == "a"
    assert plain(True) is True
    assert plain(None) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (24, "24"),
        (1234567, "1,234,567"),
        (6_000_864.0, "6,000,864"),
        (2.5, "2.5"),
        (1776.5, "1,776"),
        (0.123456, "0.1235"),
        (12345.6, "1.235e+04"),
        (-1234567.5, "-1.23e+06"),
        (999_999_999_999_999, "999,999,999,999,999"),
        (-(10**15), "-1e+15"),
        (3.8e25, "3.8e+25"),
        (10**20, "1e+20"),
        (1.776e-15, "1.776e-15"),
        (-3, "-3"),
        ("hang", "hang"),
        (True, "True"),
    ],
)
def test_number(value, text):
    assert number(value) == text

"""One question: what counts as a prediction, and how its numbers read."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.check.question import (
    SIDE,
    Question,
    bar,
    is_close,
    is_far,
    number,
    plain,
    ratio,
    words,
)


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
        (6_000_864.0, "6,000,864"),
        (2.5, "2.5"),
        (0.123456, "0.1235"),
        (12345.6, "1.235e+04"),
        (-1234567.5, "-1.23e+06"),
        (999_999_999_999_999, "999,999,999,999,999"),
        (-(10**15), "-1e+15"),
        (10**20, "1e+20"),
        (1.776e-15, "1.776e-15"),
        (-3, "-3"),
        ("hang", "hang"),
        (True, "True"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        (24, "Exactly right."),
        (21.6, "Close: 10 % below the measured value."),
        (26.4, "Close: 10 % above the measured value."),
        (27, "The right size: 12 % above the measured value."),
        (30, "The right size: 25 % above the measured value."),
        (30.1, "Too large: 25 % above the measured value."),
        (15, "Too small: 38 % below the measured value."),
        (47.99, "Too large: 100 % above the measured value."),
        (48, "Your prediction is 2 times the measured value."),
        (12, "The measured value is 2 times your prediction."),
        (24 * 2.3456, "Your prediction is 2.35 times the measured value."),
        (24 / 2.3456, "The measured value is 2.35 times your prediction."),
        (24.00000024, "Right: the measured value differs by less than 0.1 %."),
        (24.03, "Close: 0.12 % above the measured value."),
        (24 * 0.8765, "The right size: 12 % below the measured value."),
        (0, "Different from the measured value."),
        (-24, "Different from the measured value."),
    ],
)
def test_words(prediction, said):
    assert words(prediction, 24, "measured") == said


def test_words_name_the_source():
    assert words(1, 3, "formula") == "The formula's value is 3 times your prediction."
    assert words(9, 3, "published") == "Your prediction is 3 times the published value."
    assert words(1, 0, "simulated") == "Different from the simulated value."


def test_zero_and_negative_numbers():
    assert ratio(0, 0) == 1
    assert ratio(-6, -3) == 2
    assert ratio(3, 0) is None
    assert words(-6, -3, "formula") == "Your prediction is 2 times the formula's value."


def test_a_word_is_right_or_not():
    assert words(" Hang", "hang", "measured") == "Exactly right."
    assert words("crash", "hang", "measured") == "Different from the measured value."
    assert words(2, "2", "measured") == "Exactly right."  # a rank's number, as a word
    assert ratio("true", True) == 1
    assert not is_far("crash", "hang")
    assert is_close("Hang", "hang")
    assert not is_close("crash", "hang")
    assert ratio("crash", "hang") is None
    assert ratio("crash", 3) is None
    assert ratio(1, True) is None


def test_far():
    predictions, far = (5, 5.1, 19.9, 20, 0), [True, False, False, True, True]
    assert [is_far(x, 10) for x in predictions] == far
    asks = [" Which assumption" in question(x, measured=10).comment() for x in predictions]
    assert asks == far
    assert "assumption" not in question("crash", measured="hang").comment()


@pytest.mark.parametrize(
    ("prediction", "left", "right"),
    [
        (100, "", None),
        (110, "", None),
        (111, "", "█"),
        (201, "", "██"),
        (90, "", None),
        (50, "█", ""),
        (49, "██", ""),
        (25600, "", "█" * 8),
        (25700, "", "█" * 7 + "▶"),
        (100 / 256, "█" * 8, ""),
        (0.001, "◀" + "█" * 7, ""),
    ],
)
def test_bar(prediction, left, right):
    drawn = bar(prediction, 100)
    assert drawn[:SIDE].strip() == left
    assert drawn[SIDE] == ("●" if right is None else "│")
    assert drawn[SIDE + 1 :].strip() == (right or "")
    assert len(drawn) == 2 * SIDE + 1


def test_no_bar_without_a_ratio():
    assert bar(1e300, 1e-12).strip() == f"│{'█' * 7}▶"  # a ratio that is no float has a bar
    assert bar(5e-324, 1e300).strip() == f"◀{'█' * 7}│"
    assert bar(0, 5) == bar("hang", "crash") == bar(-5, 5) == ""
    assert bar("Hang ", "hang") == bar(-5, -5) == f"{' ' * SIDE}●{' ' * SIDE}"


def test_rounding_is_no_error():
    assert words(0.1 + 0.2, 0.3, "formula") == "Exactly right."

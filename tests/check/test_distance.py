"""How far off: factors and bars, and the words for them."""

import pytest

from helpers.check.distance import SIDE, bar, is_close, is_far, ratio, words


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        (24, "Exactly right."),
        (25.0, "Close: 4.2 % above the measured value."),
        (21.6, "Close: 10 % below the measured value."),
        (26.4, "Close: 10 % above the measured value."),
        (27, "The right size: 12 % above the measured value."),
        (47.99, "The right size: 100 % above the measured value."),
        (48, "Your prediction is 2 times the measured value."),
        (12, "The measured value is 2 times your prediction."),
        (24e6, "Your prediction is 1e+06 times the measured value."),
        (24 * 2.3456, "Your prediction is 2.35 times the measured value."),
        (24 / 2.3456, "The measured value is 2.35 times your prediction."),
        (24.00000024, "Close: 1e-06 % above the measured value."),
        (24 * 1.0967, "Close: 9.7 % above the measured value."),
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


def test_close_and_far():
    assert [is_close(x, 10) for x in (8.9, 9, 11, 11.1, 0)] == [False, True, True, False, False]
    assert [is_far(x, 10) for x in (5, 5.1, 19.9, 20, 0)] == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("prediction", "left", "right"),
    [
        (100, "", None),
        (110, "", None),
        (111, "", "█"),
        (200, "", "█"),
        (201, "", "██"),
        (90, "", None),
        (89, "█", ""),
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
    assert bar(0, 5) == bar("hang", "crash") == bar(-5, 5) == ""
    assert bar("Hang ", "hang") == bar(-5, -5) == f"{' ' * SIDE}●{' ' * SIDE}"


def test_rounding_is_no_error():
    assert words(0.1 + 0.2, 0.3, "formula") == "Exactly right."
    assert words(0.3001, 0.3, "formula") != "Exactly right."

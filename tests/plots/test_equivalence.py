"""Two losses and their differences are drawn, zeros and infinities too."""

import pytest

from helpers.plots.equivalence import equivalence
from helpers.plots.style import PROGRAM_COLORS


def test_it_draws_itself():
    differences = {"loss": [0.0, 1e-15], "gradient": [1e-16, float("inf")]}
    figure = equivalence("ours", [2.0, 1.0], [2.0, 1.5], differences, 1e-12)
    left, right = figure.axes
    assert [list(line.get_ydata()) for line in left.lines] == [[2.0, 1.0], [2.0, 1.5]]
    assert right.get_yscale() == "log"
    drawn = [value for line in right.lines[:2] for value in line.get_ydata()]
    assert min(drawn) == pytest.approx(1e-17)  # a zero, a tenth of the smallest
    assert [text.get_text() for text in right.texts] == ["tolerance"]
    assert list(right.lines[2].get_ydata()) == [1e-12, 1e-12]
    assert [line.get_label() for line in left.lines] == ["one process", "ours"]
    assert left.lines[1].get_color() == PROGRAM_COLORS["ours"]
    assert left.lines[0].get_linewidth() > left.lines[1].get_linewidth()  # both stay visible
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert labels == [("step", "loss"), ("step", "largest difference")]
    assert [line.get_label() for line in right.lines[:2]] == ["loss", "gradient"]
    assert list(right.lines[1].get_ydata()) == [1e-16, float("inf")]
    assert figure._repr_png_()[0].startswith(b"\x89PNG")


def test_the_bottom_is_below_the_tolerance_where_all_differences_are_larger_or_zero():
    for differences, floor in (([0.0, 0.5], 1e-4), ([0.0, 0.0], 1e-4)):
        right = equivalence("x", [1.0, 1.0], [1.0, 1.0], {"loss": differences}, 1e-3).axes[1]
        assert right.lines[0].get_ydata()[0] == pytest.approx(floor)

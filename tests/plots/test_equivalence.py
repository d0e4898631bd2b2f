"""Two losses and their differences are drawn, zeros and infinities too."""

import pytest

from helpers.plots.equivalence import equivalence


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
    assert figure._repr_png_()[0].startswith(b"\x89PNG")

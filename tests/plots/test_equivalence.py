"""Two losses and their differences are drawn, zeros and infinities too."""

from helpers.plots.equivalence import equivalence


def test_it_draws_itself():
    differences = {"loss": [0.0, 1e-15], "gradient": [1e-16, float("inf")]}
    figure = equivalence("ours", [2.0, 1.0], [2.0, 1.0], differences, 1e-12)
    left, right = figure.axes
    assert len(left.lines) == 2
    assert right.get_yscale() == "log"
    drawn = [value for line in right.lines[:2] for value in line.get_ydata()]
    assert min(drawn) > 0
    assert figure._repr_png_()[0].startswith(b"\x89PNG")

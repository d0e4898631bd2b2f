"""Each roof bends at its ridge; operations and measurements stand where they belong."""

import pytest

from helpers.plots.roofline import roofline

ROOFS = {"small": (100.0, 10.0), "large": (4000.0, 20.0)}  # ridges at 10 and 200


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_a_roof_rises_then_is_level():
    figure = roofline(ROOFS, intensities=(1, 1000))
    small = lines(figure)["small: ridge at 10"]
    assert list(small.get_xdata()) == [1, 10, 1000]
    assert list(small.get_ydata()) == [10, 100, 100]
    large = lines(figure)["large: ridge at 200"]
    assert list(large.get_ydata()) == [20, 4000, 4000]
    assert large.get_color() != small.get_color()
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) == ("log", "log")


@pytest.mark.parametrize(
    ("intensities", "ys"), [((0.1, 5), [1, 50]), ((20, 30), [100, 100]), ((10, 20), [100, 100])]
)
def test_a_ridge_outside_is_not_drawn_into_the_line(intensities, ys):
    figure = roofline({"small": ROOFS["small"]}, intensities=intensities)
    assert list(lines(figure)["small: ridge at 10"].get_ydata()) == ys


def test_operations_and_measurements():
    figure = roofline(ROOFS, operations={"add": 0.25}, measured={"n = 8": (2.0, 15.0)})
    axes = figure.axes[0]
    assert {text.get_text() for text in axes.texts} == {"add", "n = 8"}
    points = [tuple(map(tuple, line.get_data())) for line in axes.lines]
    assert ((2.0,), (15.0,)) in points
    assert ((0.25, 0.25), (0, 1)) in points


def test_titles_and_a_picture():
    figure = roofline(ROOFS, title="two machines")
    assert figure.axes[0].get_title() == "two machines"
    assert 1000 < len(figure._repr_png_()[0]) < 60_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"roofs": {}},
        {"roofs": {"a": (0.0, 1.0)}},
        {"roofs": ROOFS, "operations": {"none": 0}},
        {"roofs": ROOFS, "measured": {"none": (1.0, -1.0)}},
        {"roofs": ROOFS, "intensities": (0, 1)},
    ],
)
def test_what_cannot_be_drawn(wrong):
    with pytest.raises(ValueError, match=r"roof|positive"):
        roofline(**wrong)

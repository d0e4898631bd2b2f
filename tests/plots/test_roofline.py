"""Each roof bends at its ridge; operations and measurements stand where they belong."""

import pytest

from helpers.plots.roofline import roofline
from helpers.plots.style import FAINT, INK

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
    assert figure.axes[0].get_xlim() == intensities


def test_operations_and_measurements():
    figure = roofline(ROOFS, operations={"add": 0.25}, measured={"n = 8": (2.0, 15.0)})
    axes = figure.axes[0]
    assert {text.get_text() for text in axes.texts} == {"add", "n = 8"}
    points = [tuple(map(tuple, line.get_data())) for line in axes.lines]
    assert ((2.0,), (15.0,)) in points
    assert ((0.25, 0.25), (0, 1)) in points
    for ridge in ((10.0, 100.0), (200.0, 4000.0)):
        assert ((ridge[0],), (ridge[1],)) in points
    names = {text.get_text(): text.xy[0] for text in axes.texts}
    assert names == {"add": 0.25, "n = 8": 2.0}
    (cross,) = [line for line in axes.lines if list(line.get_xdata()) == [2.0]]
    assert cross.get_marker() == "x"
    figure.draw_without_rendering()
    (add,) = [text for text in axes.texts if text.get_text() == "add"]
    frame, box = axes.get_window_extent(), add.get_window_extent()
    assert frame.y0 < box.y0 < box.y1 < (frame.y0 + frame.y1) / 2  # at the foot of its line
    assert add.get_color() == INK
    assert repr(figure) == (
        "Rooflines on logarithmic axes: small, peak 100 FLOP/s, ridge at 10 FLOP per byte; large, "
        "peak 4000 FLOP/s, ridge at 200 FLOP per byte. Operations: add at 0.25. Measured: n = 8, "
        "15 FLOP/s at 2."
    )


def test_everything_is_on_the_axes():
    axes = roofline(ROOFS, intensities=(1, 1000)).axes[0]
    assert axes.get_xlim() == (1, 1000)
    usual = roofline(ROOFS).axes[0]
    assert usual.get_xlim() == (0.05, 1e4)
    assert usual.get_ylim()[0] < 0.5  # where the lower roof begins
    low, high = axes.get_ylim()
    assert 5 < low < 10 < 4000 < high
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "arithmetic intensity, FLOP per byte of memory traffic", "FLOP/s at most"
    )  # fmt: skip
    assert len(axes.get_xticks(minor=True)) == len(axes.get_yticks(minor=True)) == 0
    for point in ((2.0, 0.5), (2.0, 90_000.0)):
        low, high = roofline(ROOFS, measured={"p": point}).axes[0].get_ylim()
        assert low * 2 < point[1] < high
    flat = roofline({"a": (5.0, 100.0)}, intensities=(1, 10)).axes[0].get_ylim()
    assert 2 < flat[0] < 5 < flat[1]


def test_the_key_of_roofs_in_one_plot():
    key = roofline(ROOFS).legends[0]
    assert [text.get_text() for text in key.get_texts()] == [
        "small: ridge at 10", "large: ridge at 200"
    ]  # fmt: skip
    assert repr(roofline(ROOFS, alt="Mine.")) == "Mine."
    (one,) = roofline({"small": ROOFS["small"]}).legends
    assert [text.get_text() for text in one.get_texts()] == ["small: ridge at 10"]


def test_a_dot_of_the_roof_s_colour_marks_its_ridge():
    axes = roofline(ROOFS).axes[0]
    roofs, dots = axes.lines[::2], axes.lines[1::2]
    assert [dot.get_xdata()[0] for dot in dots] == [10, 200]
    assert [dot.get_color() for dot in dots] == [roof.get_color() for roof in roofs]


def test_letters_are_in_the_order_of_the_operations():
    figure = roofline(MANY, operations={"dot": 300.0, "add": 0.25})
    assert [text.xy[0] for text in figure.axes[1].texts] == [300.0, 0.25]
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["a  dot", "b  add"]


MANY = {f"chip {n}": (100.0 * n, 10.0) for n in range(1, 6)}  # ridges at 10, 20, …


def test_more_roofs_have_a_plot_each():
    """Its own roof in colour, the others in the background, all axes the same."""
    figure = roofline(MANY, operations={"add": 0.25, "dot": 300.0}, measured={"here": (3.0, 4.0)})
    assert len(figure.axes) == 5
    colors = []
    for number, (axes, name) in enumerate(zip(figure.axes, MANY, strict=True)):
        ridge = 10 * (number + 1)
        assert axes.get_title() == f"{name}\nridge at {ridge}"
        roofs = [line for line in axes.lines if len(line.get_xdata()) == 3]
        assert sorted(max(line.get_ydata()) for line in roofs) == [100, 200, 300, 400, 500]
        (own,) = [line for line in roofs if line.get_color() != FAINT]
        assert max(own.get_ydata()) == 10 * ridge
        assert roofs[-1] is own  # above the others
        colors.append(own.get_color())
        guides = [line for line in axes.lines if line.get_linestyle() == ":"]
        assert [list(line.get_xdata()) for line in guides] == [[0.25, 0.25], [300.0, 300.0]]
        letters = [text for text in axes.texts if text.get_text() in "ab"]
        assert [text.xy[0] for text in letters] == [0.25, 300.0]
        assert letters[0].xy[1] != letters[1].xy[1]
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert axes.get_ylim() == figure.axes[0].get_ylim()
    assert len(set(colors)) == 5
    here = [[text for text in axes.texts if text.get_text() == "here"] for axes in figure.axes]
    assert [len(found) for found in here] == [1, 0, 0, 0, 0]
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["a  add", "b  dot"]
    assert repr(figure).startswith("Rooflines on logarithmic axes: chip 1, peak 100 FLOP/s, ridge")


def test_the_labels_of_a_grid():
    across = "arithmetic intensity, FLOP per byte of memory traffic"
    for count, middle in ((3, 1), (4, 3), (5, 4), (6, 4)):
        roofs = {f"chip {n}": (100.0, 10.0) for n in range(count)}
        figure = roofline(roofs, title="many")
        assert [axes.get_xlabel() for axes in figure.axes].index(across) == middle
        assert (figure.get_supylabel(), figure.get_suptitle()) == ("FLOP/s at most", "many")
        assert not figure.legends
        figure.draw_without_rendering()
        for number, axes in enumerate(figure.axes):  # numbers below each column
            shown = any(label.get_visible() for label in axes.get_xticklabels())
            assert shown == (number >= count - 3)
        assert figure.get_size_inches()[1] == pytest.approx(3.3 if count == 3 else 5.4)


def test_titles_and_a_picture():
    figure = roofline(ROOFS, title="two machines")
    assert figure.axes[0].get_title() == "two machines"
    assert repr(figure).startswith("two machines. Rooflines on logarithmic axes: small, ")
    assert 1000 < len(figure._repr_png_()[0]) < 60_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"roofs": {}},
        {"roofs": {"a": (0.0, 1.0)}},
        {"roofs": ROOFS, "operations": {"none": 0}},
        {"roofs": ROOFS | {"a": (1.0, -2.0)}},
        {"roofs": ROOFS, "measured": {"none": (1.0, -1.0)}},
        {"roofs": ROOFS, "measured": {"none": (0.0, 1.0)}},
        {"roofs": ROOFS, "intensities": (0, 1)},
    ],
)
def test_what_cannot_be_drawn(wrong):
    with pytest.raises(ValueError, match=r"roof|positive"):
        roofline(**wrong)

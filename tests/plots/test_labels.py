"""Labels of points cover neither each other nor other points."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import IdentityTransform

from helpers import plots
from helpers.plots.labels import along, label_box, label_points


def test_a_crowd_of_points():
    rng = np.random.default_rng(0)
    crowd = {f"model {n}": tuple(10 ** rng.uniform(0, 2, 2)) for n in range(8)}
    picture = plots.curves({"law": ([1, 100], [1, 100])}, points=crowd, log="xy")
    axes = picture.axes[0]
    picture.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert {text.get_text() for text in axes.texts} == set(crowd)
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])
    dots = axes.transData.transform(list(crowd.values()))
    assert not any(box.contains(x, y) for box in boxes for x, y in dots)


def test_points_that_almost_coincide():
    """Neither on each other nor, where there is room, beyond the axes."""
    near = {name: (1 + n / 1000, 1.0) for n, name in enumerate("abc")}
    picture = plots.curves({"law": ([0, 2], [0, 2])}, points=near)
    picture.draw_without_rendering()
    boxes = [text.get_window_extent() for text in picture.axes[0].texts]
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])


def crowd(points, line=()):
    """The labels' places in points from their dots, on axes from 0 to 10."""
    axes = plots.curves({"": line or ([], [])}, xlim=(0, 10), ylim=(0, 10), points=points).axes[0]
    return {text.get_text(): (text.xyann, text.get_ha()) for text in axes.texts}, axes


def test_a_label_stands_at_the_right_if_there_is_room():
    found, axes = crowd({"a": (5, 5), "edge": (9.9, 5), "corner": (9.95, 9.95), "foot": (5, 0.05)})
    assert found["a"] == ((6, 0), "left")
    assert found["edge"] == ((-6, 0), "right")
    assert found["corner"] == ((-6, -8), "right")
    assert found["foot"] == ((6, 8), "left")
    assert {text.get_va() for text in axes.texts} == {"center"}
    long = "x" * 50  # more than half of the axes
    assert crowd({long: (5, 5)})[0][long] == ((0, pytest.approx(9 * 2.4)), "center")
    dots = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    assert len(dots) == 4
    assert {line.get_linestyle() for line in dots} == {"None"}
    assert {line.get_label() for line in dots} == {"_"}


def test_a_label_leaves_a_curve_free():
    assert crowd({"point": (5, 5)}, ([0, 10], [5, 5]))[0]["point"] == ((6, 8), "left")
    two = {"a": [1, 2], "b": ([0, 10], [5, 5])}
    axes = plots.curves(two, ylim=(0, 10), points={"point": (5, 5)}).axes[0]
    assert axes.texts[0].xyann == (6, 8)  # the second curve counts, too
    assert crowd({"point": (5, 5)}, ([5, 5], [0, 10]))[0]["point"] == ((6, 0), "left")
    between = {"low": ([0, 10], [4.0, 6.4]), "high": ([0, 10], [4.9, 7.3])}
    axes = plots.curves(between, ylim=(0, 10), key="", points={"a long name": (5, 5.7)}).axes[0]
    assert axes.texts[0].xyann == (0, pytest.approx(9 * 2.4))  # far, and on no line


def test_a_label_that_stands_far_from_its_point_has_a_line_to_it():
    found, axes = crowd({f"model {n}": (5, 5) for n in range(9)})
    assert len(set(found.values())) == 9
    far = [abs(text.xyann[0]) > 8 or abs(text.xyann[1]) > 12 for text in axes.texts]
    assert [text.arrow_patch is not None for text in axes.texts] == far
    assert 0 < sum(far) < 9


def test_the_box_of_a_label():
    wide, high = 0.6 * 9 * 4, 1.25 * 9  # four letters of nine points
    for dx, left in ((6, 16), (-6, 4 - wide), (0, 10 - wide / 2)):
        box = label_box("abcd", 10, 20, dx, 3, 1.0)
        assert box.extents == pytest.approx((left, 23 - high / 2, left + wide, 23 + high / 2))
    double = label_box("abcd", 10, 20, 6, 3, 2.0)
    assert double.extents == pytest.approx((22, 26 - high, 22 + 2 * wide, 26 + high))


def test_places_along_a_line():
    axes = Figure().subplots()
    pixels = {"transform": IdentityTransform()}
    (line,) = axes.plot([0, float("nan"), 30], [0, 1, 40], **pixels)
    found = along(axes, line)
    assert len(found) == 10  # of 50 pixels
    assert [tuple(map(float, spot)) for spot in found[:2]] == [(0, 0), pytest.approx((3, 4))]
    assert along(axes, axes.plot([1, 2], [3, 4], "o", **pixels)[0]) == []
    assert along(axes, axes.plot([1], [3], **pixels)[0]) == []
    gap = float("nan")
    assert along(axes, axes.plot([gap, gap], [3, 4], **pixels)[0]) == []


def test_points_are_drawn_where_they_are():
    axes = plots.curves({"a": [1, 2]}, points={"here": (0.5, 1.5)}).axes[0]
    assert [(0.5,), (1.5,)] in [[tuple(v) for v in line.get_data()] for line in axes.lines]


def test_distances_are_points_at_any_number_of_dots_an_inch():
    places = []
    for dpi in (80, 240):
        axes = Figure(dpi=dpi).subplots()
        axes.set(xlim=(0, 10), ylim=(0, 10))
        label_points(axes, {f"point {n}": (8.4 + 0.2 * n, 1 + n) for n in range(8)})
        places.append([text.xyann for text in axes.texts])
    assert places[0] == places[1]
    assert {dx for dx, _ in places[0]} == {6, -6}  # some have no room at the right


def test_a_gap_in_a_heat_map_has_no_colour():
    assert "from 1 to 2." in repr(plots.heat([[float("nan"), 1], [2, float("inf")]]))


def test_marks_can_be_chosen():
    axes = Figure().subplots()
    label_points(axes, {"a": (1, 2)}, marker="x", color="red")
    assert (axes.lines[0].get_marker(), axes.lines[0].get_color()) == ("x", "red")

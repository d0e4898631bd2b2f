"""Labels of points cover neither each other nor other points."""

import itertools

import numpy as np

from helpers import plots


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


def test_names_at_the_ends_stand_below_each_other_in_the_order_of_the_ends():
    data = {f"cut {n}": [5.0, 1.0 - n / 1000] for n in range(5)}
    picture = plots.curves(data, key="ends")
    picture.draw_without_rendering()
    lines = [text.get_window_extent() for text in reversed(picture.axes[0].texts)]
    names = [text.get_text() for text in reversed(picture.axes[0].texts)]
    assert names == list(data)
    for above, below in itertools.pairwise(lines):
        assert above.y0 >= below.y1
    far = plots.curves({"low": [5.0, 1.0], "high": [1.0, 5.0]}, key="ends").axes[0]
    assert [text.xyann[1] for text in far.texts] == [0, 0]  # room enough: none is moved


def test_points_are_drawn_where_they_are():
    axes = plots.curves({"a": [1, 2]}, points={"here": (0.5, 1.5)}).axes[0]
    assert [(0.5,), (1.5,)] in [[tuple(v) for v in line.get_data()] for line in axes.lines]

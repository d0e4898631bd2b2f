"""Labels of points cover neither each other nor other points."""

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


def test_points_are_drawn_where_they_are():
    axes = plots.curves({"a": [1, 2]}, points={"here": (0.5, 1.5)}).axes[0]
    assert [(0.5,), (1.5,)] in [[tuple(v) for v in line.get_data()] for line in axes.lines]

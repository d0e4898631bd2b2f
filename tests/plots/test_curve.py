"""One call draws the series, their key, guides and ticks; nothing of the caller's style changes."""

import matplotlib
import pandas as pd
import pytest

from helpers import plots

DATA = {"rank 1, measured": ([1, 10], [2.0, 3.0]), "rank 1, formula": ([1, 10], [2.0, 3.1])}


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_title_is_above_a_key_above():
    axes = plots.curves({"a": [1, 2]}, key="above", title="title").axes[0]
    axes.figure.draw_without_rendering()
    assert axes.title.get_window_extent().y0 >= axes.get_legend().get_window_extent().y0
    overlap = axes.get_legend().get_window_extent().overlaps(axes.title.get_window_extent())
    assert not overlap
    four = plots.curves({f"{n}": [n, n] for n in range(4)}, key="above").axes[0]
    four.figure.draw_without_rendering()
    names = [text.get_window_extent() for text in four.get_legend().get_texts()]
    assert len({round(box.y0) for box in names}) == 1  # in one row
    assert [box.x0 for box in names] == sorted(box.x0 for box in names)


def test_columns_and_the_index_name_the_axes():
    frame = pd.DataFrame({"step": [5, 6], "loss": [2.0, 1.0]})
    axes = plots.curves(frame, x="step", y="loss").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    assert [list(values) for values in axes.lines[0].get_data()] == [[5, 6], [2.0, 1.0]]
    axes = plots.curves(frame.set_index("step")).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "")
    assert legend(axes) == ["loss"]
    axes = plots.curves(frame, x="step", y="loss", xlabel="s", ylabel="l").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("s", "l")
    two = frame.set_index(pd.Index([7, 8], name="epoch"))
    assert plots.curves(two, x="step", y="loss").axes[0].get_xlabel() == "step"
    axes = plots.curves({"a": [1, 2]}, x=[3, 4]).axes[0]
    assert axes.get_xlabel() == ""


def test_panels():
    picture = plots.panels(2)
    left, right = picture.axes
    for axes, name in ((left, "a"), (right, "b")):
        assert plots.curves({name: [1, 2]}, title=name, on=axes) is picture
    assert (left.get_title(), right.get_title()) == ("a", "b")
    assert repr(picture).startswith("a. A line chart")
    assert " b. A line chart" in repr(picture)
    plots.curves({"c": [1, 2]}, on=right, alt="Mine.")
    assert repr(picture).endswith("Mine.")
    plots.curves({"d": [1, 2]}, on=right)  # one more curve on the same plot
    assert repr(picture).endswith("Mine.")


def test_the_callers_style_stays():
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever another test has left behind
        before = dict(matplotlib.rcParams)
        plots.curves(DATA)._repr_png_()
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", plots.__all__)
def test_every_name_is_there(name):
    assert callable(getattr(plots, name))
    assert name in dir(plots)


def test_no_such_name():
    with pytest.raises(AttributeError, match="no attribute 'pie'"):
        plots.pie  # noqa: B018

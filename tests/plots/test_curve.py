"""One call draws the series, their key, guides and ticks; nothing of the caller's style changes."""

import matplotlib
import pandas as pd
import pytest

from helpers import plots
from helpers.plots.curve import named_series

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


def test_a_key_beside_has_no_more_names_than_there_is_room_for():
    axes = plots.curves({f"rank {n}": [n, n] for n in range(40)}, height=2.6).axes[0]
    assert legend(axes) == [f"rank {n}" for n in range(0, 40, 4)]


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


FRAME = pd.DataFrame({"step": [0, 1, 0, 1], "rank": [0, 0, 1, 1], "loss": [4.0, 3.0, 5.0, 2.0]})


def test_a_frame_by_rank():
    found = named_series(FRAME, x="step", y="loss", by="rank")
    assert found == {"rank 0": ([0, 1], [4.0, 3.0]), "rank 1": ([0, 1], [5.0, 2.0])}
    upside_down = named_series(FRAME[::-1], x="step", y="loss", by="rank")
    assert list(upside_down) == ["rank 0", "rank 1"]


def test_a_frame_of_columns_over_its_index():
    table = pd.DataFrame({"weak": [1.0, 0.5], "strong": [1.0, 0.2]}, index=[8, 64])
    assert named_series(table) == {"weak": ([8, 64], [1.0, 0.5]), "strong": ([8, 64], [1.0, 0.2])}
    assert list(named_series(FRAME, x="step")) == ["rank", "loss"]
    gaps = pd.DataFrame({"x": [3, 1], "y": [float("nan"), 2.0], "rank": [0, 0]})
    assert list(map(str, named_series(gaps, x="x", y="y", by="rank")["rank 0"])) == (
        ["[3, 1]", "[nan, 2.0]"]  # each point is kept, in its order
    )
    plain = pd.DataFrame([[7, 5], [8, 6]])  # its columns are 0 and 1
    assert named_series(plain, x=0, y=1) == {"": ([7, 8], [5, 6])}
    assert named_series(plain, x=1, y=0) == {"": ([5, 6], [7, 8])}
    assert named_series(plain, x=1, y=1, by=0) == {"0 7": ([5], [5]), "0 8": ([6], [6])}


def test_a_mapping_of_all_sorts():
    data = {
        "pair": ([1, 2], [3, 4]),
        "list": [5, 6],
        "series": pd.Series([7, 8], index=[3, 4]),
        "formula": lambda x: 2 * x,
    }
    assert named_series(data, x=[10, 20])["formula"] == ([10, 20], [20, 40])
    assert named_series(data, x=[10, 20])["list"] == ([10, 20], [5, 6])
    assert named_series(data, x=[10, 20])["pair"] == ([1, 2], [3, 4])
    assert named_series(data, x=[10, 20])["series"] == ([3, 4], [7, 8])
    table = pd.DataFrame({"weak": [1.0, 0.5], "strong": [1.0, 0.2]}, index=[8, 64])
    assert list(named_series({"ours": table, 3: [1]})) == ["ours weak", "ours strong", "3"]
    by_rank = named_series({"ours": FRAME}, x="step", y="loss", by="rank")
    assert list(by_rank) == ["ours rank 0", "ours rank 1"]
    assert by_rank["ours rank 1"] == ([0, 1], [5.0, 2.0])
    frames = {"right": FRAME}
    assert named_series(frames, x="step", y="loss") == {"right": ([0, 1, 0, 1], [4, 3, 5, 2])}


def test_one_sequence_has_no_name():
    assert named_series([3, 2]) == {"": ([0, 1], [3, 2])}
    assert named_series(([5, 6], [3, 2])) == {"": ([5, 6], [3, 2])}
    assert named_series((5, 6)) == {"": ([0, 1], [5, 6])}  # a tuple of two numbers is no pair
    assert named_series([[5, 6], [3, 2]]) == {"": ([0, 1], [[5, 6], [3, 2]])}  # nor is a list
    assert named_series(((1, 2), (3, 4), (5, 6))) == {"": ([0, 1, 2], [(1, 2), (3, 4), (5, 6)])}
    assert named_series(pd.Series([7, 8], index=[3, 4])) == {"": ([3, 4], [7, 8])}
    assert named_series(iter([3, 2]), x=iter([8, 9])) == {"": ([8, 9], [3, 2])}


@pytest.mark.parametrize(
    ("data", "x", "message"),
    [
        ({}, None, "no series"),
        ({"a": [1, 2, 3]}, [1, 2], "series 'a' has 2 x values and 3 y values"),
        ({"a": [1, 2], "b": [1]}, [1, 2], "series 'b' has 2 x values and 1 y values"),
        ({"a": [1, 2]}, [1, 2, 3], "series 'a' has 3 x values and 2 y values"),
        ({"f": abs}, None, "series 'f' is a function"),
    ],
)
def test_what_cannot_be_drawn(data, x, message):
    with pytest.raises(ValueError, match=message):
        named_series(data, x=x)


def test_one_column_over_the_index():
    table = pd.DataFrame({"weak": [1.0, 0.5], "strong": [1.0, 0.2]}, index=[8, 64])
    assert named_series(table, y="strong") == {"": ([8, 64], [1.0, 0.2])}
    with pytest.raises(ValueError, match="no series"):
        named_series(pd.DataFrame({"step": [1]}), x="step")

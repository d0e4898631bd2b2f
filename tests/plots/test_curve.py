"""One call draws the series, their key, guides and ticks; nothing of the caller's style changes."""

import matplotlib
import pandas as pd
import pytest

from helpers import plots
from helpers.plots.curve import number_text
from helpers.plots.style import RANK_COLORS, SERIES_COLORS

DATA = {"rank 1, measured": ([1, 10], [2.0, 3.0]), "rank 1, formula": ([1, 10], [2.0, 3.1])}


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_series_with_a_key():
    axes = plots.curves(DATA, xlabel="ranks", ylabel="MB", title="bytes", log="x").axes[0]
    first, second = axes.lines
    assert list(first.get_ydata()) == [2.0, 3.0]
    assert first.get_color() == second.get_color() == RANK_COLORS[1]
    assert (first.get_linestyle(), second.get_linestyle()) == ("-", "--")
    assert legend(axes) == list(DATA)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("ranks", "MB", "bytes")


def test_many_series_have_their_key_beside_the_plot():
    few = plots.curves({f"{n}": [n, n] for n in range(3)}).axes[0]
    many = plots.curves({f"{n}": [n, n] for n in range(6)}).axes[0]
    for axes, outside in ((few, False), (many, True)):
        axes.figure.draw_without_rendering()
        left = axes.get_legend().get_window_extent().x0
        assert (left >= axes.get_window_extent().x1) == outside


def test_a_single_series_without_a_name_has_no_key():
    axes = plots.curves([1, 2, 3]).axes[0]
    assert axes.get_legend() is None


def test_no_key_no_names_in_the_words():
    picture = plots.curves({f"run {n}": [n, 1] for n in range(3)}, key="")
    assert picture.axes[0].get_legend() is None
    assert "run" not in repr(picture)


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


def test_names_at_the_ends_do_not_cover_each_other():
    data = {f"cut {n}": [5.0, 1.0 + n / 1000] for n in range(5)}
    picture = plots.curves(data, key="ends")
    picture.draw_without_rendering()
    boxes = [text.get_window_extent() for text in picture.axes[0].texts]
    assert len(boxes) == 5
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_nested_curves_get_thinner():
    for count in (2, 6):
        lines = plots.curves({f"{n}": [1, 2] for n in range(count)}, nested=True).axes[0].lines
        widths = [line.get_linewidth() for line in lines]
        assert widths == sorted(widths, reverse=True)
        assert len(set(widths)) == count
        assert max(widths) < 6
        assert {line.get_marker() for line in lines} == {""}


def test_styles_win_under_any_of_their_names():
    styles = {"a": {"ls": ":", "lw": 9, "c": "red", "label": "mine"}}
    axes = plots.curves({"a": [1, 2], "b": [2, 3]}, styles=styles).axes[0]
    assert legend(axes) == ["mine", "b"]
    line, other = axes.lines
    assert (other.get_linestyle(), other.get_linewidth(), other.get_marker()) == ("-", 1.8, "o")
    assert (line.get_linestyle(), line.get_linewidth(), line.get_color()) == (":", 9, "red")


def test_ticks_and_guides():
    axes = plots.curves(
        {"a": ([2, 1024], [50, 400])},
        log="xy",
        xticks=[2, 1024],
        yticks={50: "fifty", 400: 400},
        vlines={"critical": 30},
        hlines={"goal": 60},
        xlim=(1, 2000),
    ).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "1,024"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fifty", "400"]
    assert (list(axes.get_xticks()), list(axes.get_yticks())) == ([2, 1024], [50, 400])
    assert len(axes.get_yticks(minor=True)) == 0
    assert len(axes.get_xticks(minor=True)) == 0
    assert {text.get_text() for text in axes.texts} == {"critical", "goal"}
    assert [30, 30] in [list(line.get_xdata()) for line in axes.lines]
    assert [60, 60] in [list(line.get_ydata()) for line in axes.lines]
    assert axes.get_xlim() == (1, 2000)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    axes.figure.draw_without_rendering()
    frame = axes.get_window_extent()
    for label in axes.texts:  # inside, at the top; or at the right, above its line
        box = label.get_window_extent()
        assert frame.y0 < box.y0 < box.y1 <= frame.y1
        assert frame.x0 < box.x0 < box.x1 <= frame.x1


@pytest.mark.parametrize(
    ("value", "text"), [(1024, "1,024"), (999_999, "999,999"), (1e6, "1e+06"), (-2e6, "-2e+06"),
                        (0.25, "0.25")],
)  # fmt: skip
def test_a_tick_s_number(value, text):
    assert number_text(value) == text


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


def test_four_names_do_not_fit_inside():
    """The key of four names begins at the right edge of the plot."""
    axes = plots.curves({f"{n}": [n, n] for n in range(4)}, ylim=(-1, 9), width=5, height=4).axes[0]
    assert tuple(axes.figure.get_size_inches()) == (5, 4)
    assert axes.get_ylim() == (-1, 9)
    axes.figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    inside = plots.curves({f"{n}": [n, n] for n in range(4)}, key="inside").axes[0]
    inside.figure.draw_without_rendering()
    assert inside.get_legend().get_window_extent().x0 < inside.get_window_extent().x1


def test_a_curve_on_a_plot_keeps_its_title_and_sets_its_scales():
    picture = plots.curves({"a": [1, 2]}, title="first", log="xy")
    axes = picture.axes[0]
    plots.curves({"b": ([1, 2], [2, 3])}, on=axes, log="y")
    assert (axes.get_title(), axes.get_xscale(), axes.get_yscale()) == ("first", "linear", "log")
    assert legend(axes) == ["a", "b"]
    plots.curves([1], on=axes, points={"here": (1.5, 1.5)})
    assert [text.get_text() for text in axes.texts] == ["here"]


def test_the_limits_are_those_of_the_data_unless_they_are_given():
    series = {"a": ([100, 110], [-5.0, -4.0])}
    axes = plots.curves(series).axes[0]
    for (low, high), (least, most) in ((axes.get_xlim(), (100, 110)), (axes.get_ylim(), (-5, -4))):
        assert least - 1 < low < least < most < high < most + 1
    both = plots.curves(series, xlim=(0, 200), ylim=(-9, 0)).axes[0]
    assert (both.get_xlim(), both.get_ylim()) == ((0, 200), (-9, 0))
    assert tuple(axes.figure.get_size_inches()) == (6.2, 2.8)


def test_many_points_have_no_marks_and_no_ticks_can_be_chosen():
    axes = plots.curves({"a": range(100), "b": range(3)}, xticks=[], yticks=[0, 50]).axes[0]
    assert [line.get_marker() for line in axes.lines] == ["", "o"]
    assert [line.get_linewidth() for line in axes.lines] == [1.8, 1.8]
    assert list(axes.get_xticks()) == []
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "50"]


def test_series_keep_their_order_and_their_colours():
    axes = plots.curves({"z": [1, 2], "a": [3, 4]}).axes[0]
    assert [line.get_color() for line in axes.lines] == list(SERIES_COLORS[:2])
    assert legend(axes) == ["z", "a"]


def test_a_guide_is_dashed_and_its_label_beside_it():
    series = {"a": ([0, 10], [0, 10])}
    axes = plots.curves(series, key="", vlines={"v": 5}, hlines={"h": 5}).axes[0]
    axes.figure.draw_without_rendering()
    x, y = axes.transData.transform((5, 5))
    v, h = (text.get_window_extent() for text in axes.texts)
    assert x < v.x0 < x + 10
    assert v.y0 > (y + axes.get_window_extent().y1) / 2  # at the top
    assert y - 2 < h.y0 < y + 10
    assert h.x1 > axes.get_window_extent().x1 - 10  # at the right
    assert [line.get_linestyle() for line in axes.lines[1:]] == ["--", "--"]
    assert repr(axes.figure).count("Series") == 0


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

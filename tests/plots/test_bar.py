"""Bars start at zero; on a logarithmic axis there are points; the words carry the numbers."""

import pytest
from matplotlib.container import BarContainer

from helpers import plots
from helpers.plots.style import PROGRAM_COLORS


def test_bars():
    picture = plots.bars({"7B": 112, "70B": 1120}, xlabel="GB", numbers="{:.0f} GB", title="state")
    axes = picture.axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 112), (0, 1120)]
    assert [text.get_text() for text in axes.texts] == ["112 GB", "1120 GB"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["7B", "70B"]
    assert axes.get_legend() is None
    assert repr(picture) == "state. Bars of GB: 7B 112; 70B 1120."


def test_points_on_a_logarithmic_axis():
    picture = plots.bars({"a": 1, "b": 100}, log=True, vlines={"limit": 10})
    axes = picture.axes[0]
    assert axes.get_xscale() == "log"
    assert not any(isinstance(found, BarContainer) for found in axes.containers)
    assert sorted(map(tuple, axes.collections[0].get_offsets().tolist())) == [(1, 0), (100, 1)]
    assert "logarithmic" not in repr(picture)
    assert repr(picture).startswith("Points")
    picture._repr_png_()
    (axes,) = plots.bars({"a": 1, "b": 4}, log=True, numbers="{:.0f} s", xlim=(0.5, 8)).axes
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("1 s", (1, 0)), ("4 s", (4, 1))]
    assert axes.get_xlim() == (0.5, 8)


def test_groups_have_a_key_and_colours_with_a_meaning():
    axes = plots.bars({"1 MB": {"ours": 2, "PyTorch": 3}, "2 MB": {"ours": 4}}).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ours", "PyTorch"]
    import matplotlib.colors

    colors = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert colors == [PROGRAM_COLORS[name] for name in ("ours", "ours", "PyTorch")]
    places = [bar.get_y() for bar in axes.patches]
    assert len(set(places)) == 3
    axes.figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1


def test_stacked_bars_begin_where_the_part_before_ends():
    values = {"tensor": {"norms": 3, "scores": 2}, "sequence": {"scores": 2, "masks": 1}}
    axes = plots.bars(values, stacked=True, numbers="{:.0f} MB").axes[0]
    parts = {name: [(b.get_x(), b.get_width()) for b in bars] for name, bars in named(axes).items()}
    assert parts == {"norms": [(0, 3)], "scores": [(3, 2), (0, 2)], "masks": [(2, 1)]}
    assert [text.get_text() for text in axes.texts] == ["5 MB", "3 MB"]
    middles = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches]
    assert middles == pytest.approx([0, 0, 1, 1])


def test_stacked_bars_need_an_axis_with_a_zero():
    with pytest.raises(ValueError, match="stacked"):
        plots.bars({"a": {"b": 1}}, stacked=True, log=True)


def named(axes):
    return {bars.get_label(): bars for bars in axes.containers}


@pytest.mark.parametrize(
    ("values", "log"),
    [({}, False), ({"a": 0}, True), ({"a": 1, "b": 0}, True), ({"a": {"b": -1}}, True)],
)
def test_what_cannot_be_drawn(values, log):
    with pytest.raises(ValueError, match=r"no values|positive"):
        plots.bars(values, log=log)


def middles(axes):
    return {name: [bar.get_y() + bar.get_height() / 2 for bar in bars]
            for name, bars in named(axes).items()}  # fmt: skip


def test_bars_of_a_group_stand_side_by_side_from_the_top():
    values = {"1 MB": {"x": 2, "y": 3}, "2 MB": {"y": 4}}
    axes = plots.bars(values, numbers="{:.1f}", vlines={"limit": 5}).axes[0]
    assert middles(axes) == {"x": pytest.approx([-0.2]), "y": pytest.approx([0.2, 1.2])}
    assert all(0.3 < bar.get_height() < 0.4 for bar in axes.patches)
    *numbers, guide = axes.texts
    assert [text.get_text() for text in numbers] == ["2.0", "3.0", "4.0"]
    assert [text.xy[0] for text in numbers] == [2, 3, 4]
    assert [text.xy[1] for text in numbers] == pytest.approx([-0.2, 0.2, 1.2])
    assert guide.get_text() == "limit"
    assert list(axes.lines[0].get_xdata()) == [5, 5]
    bottom, top = axes.get_ylim()
    assert bottom == 1.5
    assert top < -0.9  # room for the guide's label
    assert plots.bars(values).axes[0].get_ylim() == (1.5, -0.5)
    (axes,) = plots.bars({"a": -2}, numbers="{}", vlines={"low": -1, "high": 3}).axes
    assert [(text.get_text(), text.xy[0]) for text in axes.texts] == [
        ("-2", -2), ("low", -1), ("high", 3)
    ]  # fmt: skip


def test_groups_of_points_keep_apart_too():
    axes = plots.bars({"a": {"x": 1, "y": 10}, "b": {"y": 100}}, log=True).axes[0]
    places = [p for points in axes.collections for p in points.get_offsets().ravel()]
    assert places == pytest.approx([1, -0.2, 10, 0.2, 100, 1.2])
    assert axes.get_xscale() == "log"
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["x", "y"]
    assert axes.yaxis.get_gridlines()[0].get_visible()  # it leads from the name to the point
    assert not plots.bars({"a": 1}).axes[0].yaxis.get_gridlines()[0].get_visible()


def test_a_row_has_the_colour_that_its_name_means():
    from matplotlib.colors import to_hex

    from helpers.plots.style import RANK_COLORS, WORK_COLORS

    wanted = [RANK_COLORS[1], WORK_COLORS["backward"], "#4477aa"]
    rows = {"rank 1": 1, "backward": 2, "x": 3}
    assert [to_hex(bar.get_facecolor()) for bar in plots.bars(rows).axes[0].patches] == wanted
    points = plots.bars(rows, log=True).axes[0].collections[0]
    assert [to_hex(color) for color in points.get_facecolors()] == wanted


def test_the_caller_chooses_place_size_limits_and_words():
    picture = plots.bars({7: 1}, width=3, height=2, xlim=(0, 5), xlabel="s", title="t", alt="Mine.")
    (axes,) = picture.axes
    assert tuple(picture.get_size_inches()) == (3, 2)
    assert (axes.get_xlim(), axes.get_xlabel(), axes.get_title()) == ((0, 5), "s", "t")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["7"]
    assert repr(picture) == "Mine."
    two = plots.panels(2)
    assert plots.bars({"a": 1}, on=two.axes[1]) is two
    assert [len(axes.patches) for axes in two.axes] == [0, 1]


def test_the_height_grows_with_the_bars():
    groups = {"1": {"a": 1, "b": 2, "c": 3}, "2": {"a": 1, "b": 2, "c": 3}}
    heights = [
        plots.bars({"a": 1}).get_size_inches()[1],
        plots.bars({str(n): n for n in range(5)}, title="five").get_size_inches()[1],
        plots.bars(groups).get_size_inches()[1],
        plots.bars(groups, stacked=True).get_size_inches()[1],
    ]
    assert heights == pytest.approx([1.62, 3.0, 3.06, 1.62])


def test_the_words_of_groups():
    values = {"1 MB": {"ours": 20_000, "PyTorch": 0.5}, "2 MB": {"ours": 7}}
    assert repr(plots.bars(values, xlabel="ms", log=True)) == (
        "Points of ms, logarithmic: 1 MB ours 20000, PyTorch 0.5; 2 MB ours 7."
    )

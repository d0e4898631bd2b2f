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


def test_groups_have_a_key_and_colours_with_a_meaning():
    axes = plots.bars({"1 MB": {"ours": 2, "PyTorch": 3}, "2 MB": {"ours": 4}}).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ours", "PyTorch"]
    import matplotlib.colors

    colors = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert colors == [PROGRAM_COLORS[name] for name in ("ours", "ours", "PyTorch")]
    places = [bar.get_y() for bar in axes.patches]
    assert len(set(places)) == 3


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

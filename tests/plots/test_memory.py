"""Memory bars: each kind is a part of its row, in its colour; the words have the bytes."""

import matplotlib.colors
import pytest
from matplotlib.lines import Line2D

from helpers import plots
from helpers.plots.memory import bytes_text, kind_colors, kind_key
from helpers.plots.style import MEMORY_COLORS, SERIES_COLORS

ROWS = {
    "stage 0": {"parameters": 15e9, "gradients": 15e9, "optimizer": 90e9},
    "stage 3": {"parameters": 1e9, "gradients": 1e9, "optimizer": 2e9},
}


def test_parts_follow_each_other():
    axes = plots.memory_bars(ROWS, title="a model").axes[0]
    parts = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert parts == [(0, 15), (15, 15), (30, 90), (0, 1), (1, 1), (2, 2)]  # GB
    assert axes.get_xlabel() == "GB"
    assert [text.get_text() for text in axes.texts] == ["120 GB", "4 GB"]
    colors = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in axes.patches[:3]]
    assert colors == [MEMORY_COLORS[kind] for kind in ("parameters", "gradients", "optimizer")]
    key = [text.get_text() for text in axes.get_legend().get_texts()]
    assert key == ["parameters", "gradients", "optimizer"]


def test_a_guide_is_in_the_unit_of_the_axis():
    axes = plots.memory_bars({"a": {"parameters": 500}}, vlines={"limit": 2000}).axes[0]
    assert axes.get_xlabel() == "kB"
    assert axes.patches[0].get_width() == 0.5
    assert 2.0 in axes.lines[0].get_xdata()
    assert axes.get_ylim()[1] < -0.9  # room for the guide's label
    assert plots.memory_bars({"a": {"parameters": 500}}).axes[0].get_ylim() == (0.5, -0.5)


def test_totals_stand_at_the_ends_of_their_bars():
    axes = plots.memory_bars(ROWS | {7: {"parameters": 0}}, title="t").axes[0]
    assert [text.xy for text in axes.texts] == [(120, 0), (4, 1), (0, 2)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0", "stage 3", "7"]
    middles = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches]
    assert middles == pytest.approx([0, 0, 0, 1, 1, 1, 2])
    assert axes.get_title() == "t"
    assert axes.get_ylim() == (2.5, -0.5)
    axes.figure.draw_without_rendering()
    assert axes.texts[0].get_window_extent().x1 <= axes.get_window_extent().x1


def test_the_unit_suits_the_longest_bar_and_the_size_the_rows():
    rows = {"a": {"parameters": 1e6}, "b": {"parameters": 6e8, "scratch": 4e8}}
    picture = plots.memory_bars(rows)
    assert picture.axes[0].get_xlabel() == "GB"  # of the sum, not of a part
    many = plots.memory_bars({str(n): {"parameters": 1} for n in range(6)})
    assert many.axes[0].get_xlabel() == "bytes"
    assert many.get_size_inches()[1] > picture.get_size_inches()[1] + 1
    assert tuple(plots.memory_bars(rows, width=5, height=2).get_size_inches()) == (5, 2)


def test_the_words():
    said = repr(plots.memory_bars(ROWS, title="a model"))
    assert said.startswith("a model. Bars of bytes by kind. stage 0, 120 GB: parameters 15, ")
    assert "stage 3, 4 GB: parameters 1, gradients 1, optimizer 2" in said
    assert repr(plots.memory_bars(ROWS, alt="mine")) == "mine"


def test_each_row_has_its_total_in_its_own_unit():
    rows = {"large": {"parameters": 3e9}, "small": {"parameters": 2e6, "x": 5e5}, "empty": {}}
    picture = plots.memory_bars(rows)
    axes = picture.axes[0]
    assert [text.get_text() for text in axes.texts] == ["3 GB", "2.5 MB", "0 bytes"]
    assert repr(picture) == (
        "Bars of bytes by kind. large, 3 GB: parameters 3; small, 2.5 MB: parameters 2, x 0.5; "
        "empty, 0 bytes."
    )
    assert picture.get_size_inches()[0] == 6.2


def test_the_key_is_beside_the_plot_and_has_room_for_more():
    axes = plots.memory_bars(ROWS).axes[0]
    axes.figure.draw_without_rendering()
    key, frame = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert key.x0 >= frame.x1
    assert key.y1 == pytest.approx(frame.y1, abs=9)  # at its top
    kind_key(axes, {"a": "red"}, Line2D([], [], label="peak"))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "peak"]


def test_two_pictures_on_one():
    picture = plots.panels(2)
    assert plots.memory_bars(ROWS, on=picture.axes[1]) is picture
    assert not picture.axes[0].patches
    assert len(picture.axes[1].patches) == 6


def test_kinds_keep_their_order_and_new_ones_get_a_colour():
    colors = kind_colors(["scratch", "optimizer", "parameters", "logits"])
    assert list(colors) == ["parameters", "optimizer", "logits", "scratch"]
    assert len(set(colors.values())) == 4


def test_new_kinds_share_colours_only_if_there_are_more_than_colours():
    kinds = [f"kind {number:02}" for number in range(len(SERIES_COLORS) + 2)]
    assert list(kind_colors(kinds).items()) == list(
        zip(kinds, [*SERIES_COLORS, *SERIES_COLORS[:2]], strict=True)
    )


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (31.4e9, "31.4 GB"),
        (2e12, "2 TB"),
        (1234, "1.23 kB"),
        (999_999, "1e+03 kB"),
        (5e6, "5 MB"),
        (1e15, "1e+03 TB"),
    ],
)
def test_bytes_as_text(nbytes, text):
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize(
    "rows",
    [{}, {"a": {}}, {"a": {"parameters": -1}}, {"a": {"parameters": 1}, "b": {"x": 1, "y": -1}}],
)
def test_what_cannot_be_drawn(rows):
    with pytest.raises(ValueError, match="bytes"):
        plots.memory_bars(rows)

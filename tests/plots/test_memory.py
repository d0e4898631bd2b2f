"""Memory bars: each kind is a part of its row, in its colour; the words have the bytes."""

import matplotlib.colors
import pytest

from helpers import plots
from helpers.plots.memory import bytes_text, kind_colors
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


def test_the_words():
    said = repr(plots.memory_bars(ROWS, title="a model"))
    assert said.startswith("a model. Bars of bytes by kind. stage 0, 120 GB: parameters 15, ")
    assert "stage 3, 4 GB: parameters 1, gradients 1, optimizer 2" in said
    assert repr(plots.memory_bars(ROWS, alt="mine")) == "mine"


def test_two_pictures_on_one():
    picture = plots.panels(2)
    assert plots.memory_bars(ROWS, on=picture.axes[1]) is picture
    assert not picture.axes[0].patches


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
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (31.4e9, "31.4 GB"), (2e12, "2 TB")],
)
def test_bytes_as_text(nbytes, text):
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize("rows", [{}, {"a": {}}, {"a": {"parameters": -1}}])
def test_what_cannot_be_drawn(rows):
    with pytest.raises(ValueError, match="bytes"):
        plots.memory_bars(rows)

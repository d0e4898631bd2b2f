"""What several pictures share: numbers as text, colours of kinds, lines of equal value, sizes."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from helpers import plots
from helpers.plots.curve import number_text
from helpers.plots.holdings import number_text as value_text
from helpers.plots.memory import bytes_text, kind_colors
from helpers.plots.picture import panels
from helpers.plots.roofline import roofline
from helpers.plots.serving import longest, serving, stairs
from helpers.plots.style import SERIES_COLORS, lightness, readable_on
from helpers.plots.timeline import Box, timeline
from tests.plots.seen import same

TEXTS = {
    bytes_text: [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (31.4e9, "31.4 GB"), (2e12, "2 TB"),
        (1234, "1.23 kB"), (999_999, "1 MB"), (5e6, "5 MB"), (1e15, "1,000 TB"),
    ],
    number_text: [
        (1024, "1,024"), (999_999, "999,999"), (1e6, "1e+06"), (-2e6, "-2e+06"), (0.25, "0.25"),
    ],
    value_text: [(1 / 3, "0.333333"), (2.0, "2"), (12_345_678, "12345678"), ("x", "x")],
    readable_on: [
        ("#ff0000", "white"), ("#00ff00", "black"), ("#0000ff", "white"), ("#808080", "black"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("write", "value", "text"), [(write, *row) for write, rows in TEXTS.items() for row in rows]
)
def test_text(write, value, text):
    assert write(value) == text


def test_light_is_green_before_red_before_blue():
    assert lightness("#ffffff") == pytest.approx(1)
    assert lightness("#00ff00") > lightness("#ff0000") > lightness("#0000ff") > lightness("#000")


def test_kinds_keep_their_order_and_share_colours_only_if_there_are_more_than_colours():
    colors = kind_colors(["scratch", "optimizer", "parameters", "logits"])
    assert list(colors) == ["parameters", "optimizer", "logits", "scratch"]
    assert len(set(colors.values())) == 4
    kinds = [f"kind {number:02}" for number in range(len(SERIES_COLORS) + 2)]
    assert list(kind_colors(kinds).values()) == [*SERIES_COLORS, *SERIES_COLORS[:2]]


def test_parts_of_a_memory_bar_have_the_order_of_the_key_and_whole_bytes():
    rows = {"a": {"optimizer": 8.0, "master copies": 0.0, "gradients": 4.0, "parameters": 4.0}}
    (axes,) = plots.memory_bars(rows).axes
    key = [to_hex(patch.get_facecolor()) for patch in axes.get_legend().get_patches()]
    parts = sorted(axes.patches, key=lambda bar: bar.get_x())
    drawn = [to_hex(bar.get_facecolor()) for bar in parts]
    assert drawn == [color for color in key if color in drawn]
    assert [bar.get_width() for bar in parts] == [4, 4, 8]
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_edges_of_stairs_and_gaps_within_a_stream():
    assert stairs([]) == ([0.0], [])
    assert stairs([(0.0, 1.0, 3), (1.0, 2.0, 4)]) == ([0.0, 1.0, 2.0], [3, 4])
    assert stairs([(1.0, 2.0, 3)]) == ([0.0, 1.0, 2.0], [0, 3])
    assert (longest({"a": [0, 1], "b": [5, 5.5]}), longest({"a": [3]})) == (1, 0)


def test_lines_of_equal_value_are_where_the_value_is():
    x, y = np.linspace(1, 3, 21), np.linspace(2, 4, 31)
    options = {"levels": [1, 4, 6, 12], "form": "%.1f", "xlabel": "N", "ylabel": "D", "log": "x"}
    picture = plots.contours(x, y, y[:, None] * x, title="t", width=5, height=4, **options)
    (axes,) = picture.axes
    (lines,) = axes.collections
    for level, path in zip(lines.levels, lines.get_paths(), strict=True):
        across, up = path.vertices.T
        assert across * up == pytest.approx(level, rel=2e-3)
    assert list(lines.levels) == [4, 6]  # 12 is the largest value, and no line
    assert [text.get_text() for text in axes.texts] == ["4.0", "6.0"]
    colors = [to_hex(color) for color in lines.get_edgecolor()]
    assert lightness(colors[0]) < lightness(colors[1])
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_title()) == ("log", "linear", "t")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("N", "D")
    assert not any(line.get_visible() for line in axes.xaxis.get_gridlines())
    assert tuple(picture.get_size_inches()) == (5, 4)
    assert repr(picture) == "t. Lines of equal value, 4.0, 6.0, over N and D."
    two = plots.panels(2)
    assert plots.contours(x, y, y[:, None] * x, levels=[4], on=two.axes[1], alt="Mine.") is two
    assert (two.axes[1].words, len(two.axes[0].collections)) == ("Mine.", 0)


def test_plots_side_by_side():
    picture = panels(3, 2, width=6.0, height=4.0, sharey=True)
    places = [axes.get_subplotspec() for axes in picture.axes]
    assert [(p.rowspan.start, p.colspan.start) for p in places] == [
        (row, column) for row in range(2) for column in range(3)
    ]
    sizes = {(1, 3): (3.9, 8.4), (2, 1): (7.8, 2.8)}
    for shape, size in sizes.items():
        assert tuple(panels(*shape).get_size_inches()) == pytest.approx(size)
    assert tuple(panels(width=2).get_size_inches()) == (2, 2.8)
    assert tuple(panels(height=2).get_size_inches()) == (7.8, 2)
    assert tuple(picture.get_size_inches()) == (6.0, 4.0)
    picture.axes[0].set_ylim(0, 7)
    assert picture.axes[1].get_ylim() == (0, 7)
    apart = panels(2, 2)  # by default each plot has its own limits
    apart.axes[0].set(xlim=(0, 7), ylim=(0, 7))
    assert {(axes.get_xlim(), axes.get_ylim()) for axes in apart.axes[1:]} == {((0, 1), (0, 1))}


PIECES = [(r, 2 * k, 2 * k + 1, "FB"[k % 2], r, k // 2) for r in range(8) for k in range(64)]
LARGE = {
    "requests": lambda: serving({str(n): [("decode", n + k, n + k + 0.5) for k in range(9)]
                                 for n in range(300)}),
    "boxes": lambda: timeline([Box(lane="a", start=n, duration=0.9, kind="forward")
                               for n in range(5000)]),
    "pieces": lambda: plots.pipelines({"x": PIECES}),
    "blocks": lambda: plots.blocks({f"request {i}": ([i], 1) for i in range(40)}, 64, 16),
    "roofs": lambda: roofline({f"chip {n}": (10.0**n, 10.0) for n in range(1, 8)},
                              operations={f"operation {n}": 2.0**n for n in range(12)}),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_much_is_drawn_as_few_marks_in_few_bytes(name):
    picture = LARGE[name]()
    assert max(len(axes.collections) for axes in picture.axes) < 40
    assert len(picture._repr_png_()[0]) < 60_000


def test_two_texts_are_the_same_but_for_rounding():
    text = "box 0.5 1 -2 0.333, #332288 edge #444444 0.6- at 1e-05"
    assert same(text, text.replace("0.333", "0.3331"))
    for old, new in (
        ("0.5", "0.51"),
        ("-2", "2"),
        ("#33", "#34"),
        ("1e-05", "1e-06"),
        ("at", "by"),
    ):
        assert not same(text, text.replace(old, new)), old

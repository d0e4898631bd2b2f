"""Each request has its row and its spans, and the blocks are drawn below."""

import matplotlib.colors
import pytest

from helpers.plots.serving import KINDS, serving, stairs
from helpers.plots.style import GREY

ROWS = {
    "request 0": [("waiting", 0.0, 1.0), ("prefill", 1.0, 2.0), ("decode", 2.0, 5.0)],
    "request 1": [("prefill", 2.0, 3.0), ("preempted", 3.0, 4.0)],
    "request 2": [],
}
BLOCKS = {"used": [(1.0, 2.0, 3), (2.0, 3.0, 4), (4.0, 5.0, 1)], "reserved": [(1.0, 5.0, 6)]}


def boxes(axes):
    """(row, kind, start, end) of all that is drawn."""
    kinds = {color: kind for kind, color in KINDS.items()}
    for collection in axes.collections:
        color = matplotlib.colors.to_hex(collection.get_facecolor()[0])
        for path in collection.get_paths():
            (left, bottom), (right, top) = path.get_extents().get_points()
            yield round((bottom + top) / 2), kinds[color], left, right


def test_spans_are_where_and_when_they_should_be():
    picture = serving(ROWS, title="a run")
    [axes] = picture.axes
    expected = [(n, *span) for n, spans in enumerate(ROWS.values()) for span in spans]
    assert sorted(boxes(axes)) == sorted(expected)
    bottom, top = axes.get_ylim()
    assert (bottom, top) == (2.5, -0.5)  # the first request is the highest
    assert (axes.get_title(), axes.get_ylabel()) == ("a run", "3 requests")
    assert axes.get_xlim() == (0, 5)
    assert [text.get_text() for text in picture.legends[0].get_texts()] == list(KINDS)
    assert axes.get_xlabel() == "seconds"
    assert serving(ROWS, xlabel="steps").axes[0].get_xlabel() == "steps"
    assert serving({"a": [("decode", 3, 4)]}).axes[0].get_xlim() == (0, 4)
    assert repr(picture) == (
        "a run. 3 requests over 5 seconds, one row each: waiting, prefill, decode, preempted."
    )
    thick = {
        matplotlib.colors.to_hex(c.get_facecolor()[0]): c.get_paths()[0].get_extents().height
        for c in axes.collections
    }
    waiting = thick.pop(KINDS["waiting"])
    assert all(0 < waiting < other < 1 for other in thick.values())


def test_the_size():
    def size(rows, *args, **options):
        return tuple(serving({str(n): [("decode", 0, 1)] for n in range(rows)}, *args, **options)
                     .get_size_inches())  # fmt: skip

    assert size(1) == pytest.approx((8, 0.5 + 0.9))
    assert size(10, title="t", width=5) == pytest.approx((5, 1.4 + 0.9 + 0.3))
    assert size(10, BLOCKS) == pytest.approx((8, 1.4 + 1.3 + 0.9))
    assert size(1000) == pytest.approx((8, 5 + 0.9))


def test_the_key_has_only_what_is_drawn():
    picture = serving({"a": [("decode", 0, 1)]})
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["decode"]
    (patch,) = picture.legends[0].get_patches()
    assert matplotlib.colors.to_hex(patch.get_facecolor()) == KINDS["decode"]
    assert not serving({"a": []}).legends
    assert repr(serving({"a": []}, xlabel="steps")) == "1 requests over 0 steps, one row each."


def test_blocks_below():
    picture = serving(ROWS, BLOCKS, capacity=8, until=6.0)
    rows, blocks = picture.axes
    assert rows.get_xlim() == blocks.get_xlim() == (0, 6)
    reserved, used = blocks.patches
    assert list(used.get_data().values) == [0, 3, 4, 0, 1]
    assert list(used.get_data().edges) == [0, 1, 2, 3, 4, 5]
    assert list(reserved.get_data().values) == [0, 6]
    assert blocks.get_ylim()[1] > 8
    assert blocks.lines[0].get_ydata()[0] == 8
    assert (rows.get_xlabel(), blocks.get_xlabel(), blocks.get_ylabel()) == (
        "",
        "seconds",
        "blocks",
    )
    assert [(text.get_text(), text.xy) for text in blocks.texts] == [("all 8 blocks", (1, 8))]
    assert [text.get_text() for text in blocks.get_legend().get_texts()] == ["reserved", "used"]
    assert used.get_facecolor()[:3] == matplotlib.colors.to_rgb(KINDS["decode"])
    assert matplotlib.colors.to_hex(reserved.get_facecolor()) == GREY
    assert "Blocks reserved: at most 6 of 8." in picture.alt
    assert "Blocks used: at most 4 of 8." in picture.alt
    assert "3 requests over 5 seconds" in picture.alt


def test_blocks_without_a_capacity():
    picture = serving(ROWS, {"used": BLOCKS["used"]})
    blocks = picture.axes[1]
    assert not blocks.lines
    assert not blocks.texts
    assert len(blocks.patches) == 1
    assert 4 < blocks.get_ylim()[1] < 6
    assert "Blocks used: at most 4." in picture.alt
    assert blocks.get_xlim() == (0, 5)
    assert serving(ROWS, until=2.0).axes[0].get_xlim() == (0, 2)  # only the beginning
    assert serving(ROWS, BLOCKS, capacity=20).axes[1].get_ylim()[1] > 20
    assert serving(ROWS, BLOCKS, capacity=3).axes[1].get_ylim()[1] > 6
    assert serving({}, {"used": []}).axes[1].get_ylim() == (0, 1)
    assert serving({}).axes[0].get_xlim() == (0, 1)
    assert serving({}, until=0).axes[0].get_xlim() == (0, 1)


def test_stairs():
    assert stairs([]) == ([0.0], [])
    assert stairs([(0.0, 1.0, 3), (1.0, 2.0, 4)]) == ([0.0, 1.0, 2.0], [3, 4])
    assert stairs([(1.0, 2.0, 3)]) == ([0.0, 1.0, 2.0], [0, 3])


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (("sleeping", 0, 1), "kind 'sleeping'; use one of"),
        (("decode", 2, 1), "from 2 to 1"),
    ],
)
def test_a_wrong_span(span, message):
    with pytest.raises(ValueError, match=message):
        serving({"a": [span]})


def test_a_span_may_take_no_time():
    assert list(boxes(serving({"a": [("decode", 1.0, 1.0)]}).axes[0])) == [(0, "decode", 1.0, 1.0)]


def test_nothing_and_much():
    assert not list(boxes(serving({}).axes[0]))
    assert serving({}, {"used": []})._repr_png_()[0].startswith(b"\x89PNG")
    many = {str(n): [("decode", n + k, n + k + 0.5) for k in range(9)] for n in range(300)}
    picture = serving(many)
    assert len(picture.axes[0].collections) == len(KINDS)
    assert picture.get_size_inches()[1] < 7
    assert len(picture._repr_png_()[0]) < 60_000

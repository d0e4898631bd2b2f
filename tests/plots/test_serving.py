"""Each request has its row and its spans, and the blocks are drawn below."""

import matplotlib.colors
import pytest

from helpers.plots.serving import KINDS, serving, stairs

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
    assert bottom > top  # the first request is the highest
    assert (axes.get_title(), axes.get_ylabel()) == ("a run", "3 requests")
    assert axes.get_xlim() == (0, 5)
    assert [text.get_text() for text in picture.legends[0].get_texts()] == list(KINDS)


def test_the_key_has_only_what_is_drawn():
    picture = serving({"a": [("decode", 0, 1)]})
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["decode"]


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
    assert "Blocks used: at most 4 of 8." in picture.alt
    assert "3 requests over 5 seconds" in picture.alt


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

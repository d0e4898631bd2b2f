"""Each token is a mark at its time; the longest gap is in the title."""

import pytest
from matplotlib.colors import to_hex

from helpers.plots.token_rows import MARK, longest, token_rows

RUNS = {
    "together": {"stream 0": [0.1, 0.2, 1.5, 1.6], "stream 1": [0.3]},
    "apart": {"stream 0": [0.1, 0.2, 0.3], "stream 1": [0.4, 0.6], "stream 2": []},
}


def test_marks_titles_and_words():
    picture = token_rows(RUNS, arrivals={"a long prompt": 0.25})
    for axes, streams in zip(picture.axes, RUNS.values(), strict=True):
        drawn = [[segment[0][0] for segment in row.get_segments()] for row in axes.collections]
        assert drawn == list(streams.values())
        assert [label.get_text() for label in axes.get_yticklabels()] == list(streams)
        assert [line.get_xdata()[0] for line in axes.lines] == [0.25]
    titles = [axes.get_title() for axes in picture.axes]
    assert titles == [
        "together: the longest gap is 1.3 seconds",
        "apart: the longest gap is 0.2 seconds",
    ]
    assert [len(axes.texts) for axes in picture.axes] == [1, 0]
    guide = picture.axes[0].texts[0]
    assert (guide.get_text(), guide.xy[0]) == ("a long prompt", 0.25)
    for axes in picture.axes:
        assert [row.get_lineoffset() for row in axes.collections] == list(
            range(len(axes.collections))
        )
        assert not axes.yaxis.get_gridlines()[0].get_visible()
    assert [axes.get_xlabel() for axes in picture.axes] == ["", "seconds"]
    # Rows have about the same height in every run.
    assert picture.axes[0].get_gridspec().get_height_ratios() == [2, 3]
    assert tuple(picture.get_size_inches()) == pytest.approx((6.2, 0.7 + 2 * 0.55 + 5 * 0.17))
    one = token_rows({"a": {"b": [1]}}, xlabel="steps", width=5)
    assert tuple(one.get_size_inches()) == pytest.approx((5, 0.7 + 0.55 + 2 * 0.17))
    assert one.axes[0].get_title() == "a: the longest gap is 0 steps"
    assert repr(one).endswith("a: 1 streams, 1 tokens, longest gap 0 steps.")
    assert repr(picture) == (
        "When each token of each stream came. together: 2 streams, 5 tokens, longest gap 1.3 "
        "seconds; apart: 3 streams, 5 tokens, longest gap 0.2 seconds; a long prompt at 0.25 "
        "seconds."
    )


def test_the_first_stream_is_on_top_and_the_axis_of_time_is_shared():
    first, second = token_rows(RUNS).axes
    bottom, top = second.get_ylim()
    assert bottom > top
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[0] == 0
    assert first.get_xlim()[1] > 1.6
    assert all(0 < row.get_linelength() < 1 for row in first.collections)  # rows keep apart
    assert {to_hex(row.get_color()) for row in first.collections} == {MARK}


def test_two_arrivals_are_two_guides():
    first, second = token_rows(RUNS, arrivals={"a": 0.1, "b": 0.3}).axes
    for axes in (first, second):
        assert [line.get_xdata()[0] for line in axes.lines] == [0.1, 0.3]
    assert [(text.get_text(), text.xy[0]) for text in first.texts] == [("a", 0.1), ("b", 0.3)]


def test_the_longest_gap_is_within_a_stream():
    assert longest({"a": [0, 1], "b": [5, 5.5]}) == 1
    assert longest({"a": [3]}) == 0


@pytest.mark.parametrize("runs", [{}, {"together": {}}, RUNS | {"empty": {}}])
def test_nothing_to_draw(runs):
    with pytest.raises(ValueError, match="no run to draw"):
        token_rows(runs)

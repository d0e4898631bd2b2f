"""Each value is a dot on its interval."""

import pytest

from helpers import plots
from helpers.plots.style import RANK_COLORS


def test_intervals():
    picture = plots.intervals({"a": (1, 2, 4), "b": (0, 3, 3)}, vlines={"Kaplan": 2.5}, xlabel="e")
    axes = picture.axes[0]
    drawn = [tuple(line.get_xdata()) for line in axes.lines]
    assert drawn[:4] == [(1, 4), (2,), (0, 3), (3,)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [set(line.get_ydata()) for line in axes.lines[:4]] == [{0}, {0}, {1}, {1}]
    assert list(axes.lines[4].get_xdata()) == [2.5, 2.5]
    assert [text.get_text() for text in axes.texts] == ["Kaplan"]
    bottom, top = axes.get_ylim()
    assert (bottom, axes.get_xlabel(), axes.get_xscale()) == (1.5, "e", "linear")
    assert top < -1  # room for the guide's label
    assert repr(picture) == "Values with intervals, e. a: 2, 1 to 4; b: 3, 0 to 3."


@pytest.mark.parametrize("rows", [{}, {"a": (2, 1, 3)}, {"a": (1, 4, 3)}])
def test_what_cannot_be_drawn(rows):
    with pytest.raises(ValueError, match=r"no rows|outside its interval"):
        plots.intervals(rows)


def test_the_caller_chooses_scale_size_limits_and_words():
    picture = plots.intervals(
        {"rank 1": (1, 2, 4), "x": (1, 1, 1)}, log=True, title="t", xlim=(0.5, 8), width=5, height=2
    )
    (axes,) = picture.axes
    assert (axes.get_xscale(), axes.get_xlim(), axes.get_ylim()) == ("log", (0.5, 8), (1.5, -0.5))
    assert axes.get_title() == "t"
    assert [line.get_color() for line in axes.lines] == [RANK_COLORS[1]] * 2 + ["#4477aa"] * 2
    assert tuple(picture.get_size_inches()) == (5, 2)
    assert repr(picture) == "t. Values with intervals. rank 1: 2, 1 to 4; x: 1, 1 to 1."
    two = plots.panels(2)
    assert plots.intervals({"a": (1, 2, 4)}, on=two.axes[1], alt="Mine.") is two
    assert repr(plots.intervals({"a": (1, 2, 4)}, title="GPT-2")).startswith("GPT-2. Values")
    assert two.axes[1].words == "Mine."
    assert not two.axes[0].lines
    heights = [
        plots.intervals({str(n): (1, 2, 4) for n in range(count)}).get_size_inches()[1]
        for count in (1, 5)
    ]
    assert heights[1] > heights[0] + 1

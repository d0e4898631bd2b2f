"""Each value is a dot on its interval."""

import pytest

from helpers import plots


def test_intervals():
    picture = plots.intervals({"a": (1, 2, 4), "b": (0, 3, 3)}, vlines={"Kaplan": 2.5}, xlabel="e")
    axes = picture.axes[0]
    drawn = [tuple(line.get_xdata()) for line in axes.lines]
    assert drawn[:4] == [(1, 4), (2,), (0, 3), (3,)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.texts] == ["Kaplan"]
    assert repr(picture) == "Values with intervals, e. a: 2, 1 to 4; b: 3, 0 to 3."


@pytest.mark.parametrize("rows", [{}, {"a": (2, 1, 3)}, {"a": (1, 4, 3)}])
def test_what_cannot_be_drawn(rows):
    with pytest.raises(ValueError, match=r"no rows|outside its interval"):
        plots.intervals(rows)

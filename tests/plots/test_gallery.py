"""Pictures side by side, each at its own place."""

import numpy as np
import pytest
import torch

from helpers import plots


def test_each_picture_has_its_place():
    above, below = torch.rand(3, 2, 4), torch.rand(2, 2, 4)
    picture = plots.pictures({"digits": above, "samples": below}, title="VAE")
    (axes,) = picture.axes
    sheet = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert sheet.shape == (5, 14)
    for top, row in ((0, above), (3, below)):
        for column, one in enumerate(row):
            left = 5 * column
            assert np.allclose(sheet[top : top + 2, left : left + 4], one)
    for gap in (sheet[2], sheet[:, 4], sheet[3:, 10:]):
        assert np.isnan(gap).all()
    assert axes.images[0].get_clim() == (0, 1)  # grey values keep their meaning
    bottom, top = axes.get_ylim()
    assert bottom > top  # the first row is the highest, and no picture is upside down
    assert axes.images[0].get_interpolation() in ("auto", "nearest")
    assert axes.get_aspect() in ("equal", 1)
    white, black = axes.images[0].cmap([0.0, 1.0])[:, :3]
    assert white.min() > 0.99
    assert black.max() < 0.01
    labels = {
        t.get_text(): y for t, y in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    }
    assert labels == {"digits": 0.5, "samples": 3.5}
    assert repr(picture) == "VAE. Rows of pictures of 2 by 4 pixels. digits: 3; samples: 2."


@pytest.mark.parametrize(
    "rows",
    [{}, {"a": torch.rand(2, 2)}, {"a": torch.rand(0, 2, 2)}]
    + [{"a": torch.rand(1, 2, 2), "b": torch.rand(1, 2, 3)}],
)
def test_what_cannot_be_drawn(rows):
    with pytest.raises(ValueError, match=r"pictures are \(n, H, W\)"):
        plots.pictures(rows)


def test_the_callers_words_and_the_shape_of_the_page():
    low = plots.pictures({"a": torch.zeros(4, 2, 2)}, alt="Mine.", width=5)
    high = plots.pictures({str(n): torch.zeros(2, 3, 2) for n in range(5)}, width=5, title="t")
    assert repr(low) == "Mine."
    assert (low.axes[0].get_title(), high.axes[0].get_title()) == ("", "t")
    # 2 by 11 and 19 by 5 pixels; the rest of the width is for the names
    assert tuple(low.get_size_inches()) == pytest.approx((5, 0.8 * 5 * 2 / 11))
    assert tuple(high.get_size_inches()) == pytest.approx((5, 0.8 * 5 * 19 / 5 + 0.4))
    assert not low.axes[0].xaxis.get_gridlines()
    assert len(low.axes[0].get_xticks()) == 0
    assert list(high.axes[0].get_yticks()) == [1, 5, 9, 13, 17]
    assert repr(high).endswith("pictures of 3 by 2 pixels. 0: 2; 1: 2; 2: 2; 3: 2; 4: 2.")

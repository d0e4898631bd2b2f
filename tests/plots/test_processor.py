"""Every level is drawn, faster ones wider; the three chips show all four kinds of block."""

import matplotlib.colors
import pytest

from helpers.plots.processor import COLORS, chips, hierarchy, quantity


def test_faster_is_wider():
    figure = hierarchy([("near", 1e6, 1e13), ("far", None, 1e11)], title="a chip")
    near, far = figure.axes[0].patches
    assert near.get_width() - far.get_width() == pytest.approx(2)  # a factor of 10² in speed
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words == ["10 TB/s", "near", "1 MB", "100 GB/s", "far"]


@pytest.mark.parametrize("levels", [[], [("x", 1.0, 0.0)]])
def test_what_cannot_be_drawn(levels):
    with pytest.raises(ValueError, match="positive"):
        hierarchy(levels)


def test_each_chip_has_all_kinds_and_no_block_covers_another():
    figure = chips()
    wanted = {matplotlib.colors.to_hex(color) for color in COLORS.values()}
    for axes in figure.axes:
        boxes = axes.patches
        assert {matplotlib.colors.to_hex(box.get_facecolor()) for box in boxes} == wanted
        for number, one in enumerate(boxes):
            for other in boxes[:number]:
                across = one.get_bbox().intersection(one.get_bbox(), other.get_bbox())
                assert across is None or across.width * across.height < 1e-9
    assert len(figure._repr_png_()[0]) < 60_000


@pytest.mark.parametrize(
    ("count", "said"), [(27_648_000, "27.6 MB"), (2.039e12, "2.04 TB"), (999, "999 bytes")]
)
def test_quantities(count, said):
    assert quantity(count) == said

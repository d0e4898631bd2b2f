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
    assert figure.axes[0].get_title() == "a chip"
    assert repr(figure) == (
        "a chip. Memories from near to far: near, 10 TB/s, holds 1 MB; far, 100 GB/s."
    )


def test_each_level_is_a_step_with_its_words_beside_it():
    figure = hierarchy([("a", 1e3, 1e12), ("b", 0.0, 2e9), ("c", 1e9, 1e9)])
    (axes,) = figure.axes
    for row, step in enumerate(axes.patches):
        assert step.get_x() + step.get_width() / 2 == pytest.approx(0)
        assert step.get_y() + step.get_height() / 2 == pytest.approx(row)
    assert axes.patches[2].get_width() == 1  # the slowest
    assert axes.patches[1].get_width() == pytest.approx(1.30103)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert bottom > 2.42 > -0.42 > top  # the nearest is the highest, and all are on the picture
    rows = zip(axes.texts[0::3], axes.texts[1::3], axes.texts[2::3], axes.patches, strict=True)
    for row, (speed, name, held, _) in enumerate(rows):
        assert speed.get_position() == (0, row)
        assert left < name.get_position()[0] < -2 < 2 < held.get_position()[0] < right
        assert name.get_position()[1] == held.get_position()[1] == row
        assert (name.get_ha(), speed.get_ha(), held.get_ha()) == ("right", "center", "left")
    colors = [sum(patch.get_facecolor()) for patch in axes.patches]
    assert colors == sorted(colors)
    assert len(set(colors)) == 3
    assert repr(figure).startswith("Memories from near to far: a, 1 TB/s, holds 1 kB; b, 2 GB/s, ")
    assert "holds 0 bytes; c" in repr(figure)
    assert hierarchy([("a", 1, 1)]).get_size_inches()[1] < figure.get_size_inches()[1] - 0.5


def test_levels_need_no_order():
    """The slowest may be the nearest, and the widest the farthest: the words stay outside."""
    axes = hierarchy([("disk", 1e12, 1e9), ("far", 1e9, 1e13), ("slow", 1e6, 1e8)]).axes[0]
    assert [step.get_width() for step in axes.patches] == pytest.approx([2, 6, 1])
    (slow, fast) = hierarchy([("slow", 1, 1e8), ("fast", 1, 1e9)]).axes[0].patches
    assert (slow.get_width(), fast.get_width()) == pytest.approx((1, 2))
    for name, held in zip(axes.texts[1::3], axes.texts[2::3], strict=True):
        left, right = axes.get_xlim()
        assert left < name.get_position()[0] < -3 < 3 < held.get_position()[0] < right


@pytest.mark.parametrize("levels", [[], [("x", 1.0, 0.0)], [("x", 1.0, 1.0), ("y", 1.0, -1.0)]])
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
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for box, text in zip(boxes, axes.texts, strict=True):
            x, y = box.get_xy()
            assert left < x < x + box.get_width() < right
            assert top < y < y + box.get_height() < bottom
            middle = x + box.get_width() / 2, y + box.get_height() / 2
            assert text.get_position() == pytest.approx(middle)
        assert axes.get_aspect() == 1  # the areas are to scale
    assert [axes.get_title() for axes in figure.axes] == [
        "CPU: few cores, each clever", "GPU: a hundred plain cores", "TPU: a few huge matrix units"
    ]  # fmt: skip
    for words in (
        "A CPU has few cores; control and caches take most of its area.",
        "A GPU has about a hundred plain cores, mostly arithmetic, and an L2 cache.",
        "A TPU has a few huge matrix units of 128 × 128 multipliers.",
        "large, slow DRAM for the CPU, small, fast HBM for GPU and TPU.",
    ):
        assert words in figure.alt
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(COLORS)
    assert len(figure._repr_png_()[0]) < 60_000


def test_how_the_chips_use_their_area():
    """What the words say: a CPU is control and caches, a GPU and a TPU are arithmetic."""
    shares = []
    for axes in chips().axes:
        area = dict.fromkeys(COLORS, 0.0)
        for box in axes.patches:
            color = matplotlib.colors.to_hex(box.get_facecolor())
            kind = next(name for name, known in COLORS.items() if known == color)
            area[kind] += box.get_width() * box.get_height()
        shares.append(area)
    cpu, gpu, tpu = shares
    assert cpu["control"] + cpu["memory on the chip"] > 5 * cpu["arithmetic"]
    for chip in (gpu, tpu):
        assert chip["arithmetic"] > chip["memory on the chip"] > chip["control"]
    words = [[text.get_text() for text in axes.texts] for axes in chips().axes]
    assert [w.count("units") for w in words] == [4, 0, 0]
    assert [len(w) for w in words] == [14, 110, 15]
    assert [w[-1] for w in words] == ["DRAM: large, slow", *["HBM: small, fast"] * 2]
    kinds = {  # of each block with words, by chip
        "order,\nguess": "control",
        "units": "arithmetic",
        "L1, L2": "memory on the chip",
        "L3 cache, shared": "memory on the chip",
        "DRAM: large, slow": "memory beside it",
        "L2 cache, shared": "memory on the chip",
        "HBM: small, fast": "memory beside it",
        "one scalar unit": "control",
        "128 × 128\nmultipliers": "arithmetic",
        "vector unit": "arithmetic",
        "memory that the\nprogram fills": "memory on the chip",
    }
    drawn = {
        (text.get_text(), matplotlib.colors.to_hex(box.get_facecolor()))
        for axes in chips().axes
        for box, text in zip(axes.patches, axes.texts, strict=True)
        if text.get_text()
    }
    assert drawn == {(name, COLORS[kind]) for name, kind in kinds.items()}
    assert words[0][-2] == "L3 cache, shared"
    assert words[2].count("128 × 128\nmultipliers") == 8


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (27_648_000, "27.6 MB"),
        (2.039e12, "2.04 TB"),
        (999, "999 bytes"),
        (1e3, "1 kB"),
        (1e6, "1 MB"),
        (1e9, "1 GB"),
        (1e12, "1 TB"),
    ],
)
def test_quantities(count, said):
    assert quantity(count) == said

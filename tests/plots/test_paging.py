"""Each block has its place, its owners' colours, and as much of them as it has tokens."""

import warnings

import pytest
from matplotlib.colors import to_hex

from helpers.plots.paging import BOX, GAP, blocks, owners_of
from helpers.plots.style import FAINT, GREY, INK, SERIES_COLORS

SEQUENCES = {"a": ([0, 1, 3], 10), "b": ([0, 1], 7), "c": ([5], 0)}


def boxes(figure):
    """(column, row) of a box -> its patches: (colour, pale?, width, height, top in the box)."""
    found = {}
    for patch in figure.axes[0].patches:
        if patch.get_fill():
            left, top = patch.get_xy()
            place = int(left / (BOX + GAP) + 1e-6), int(top / (BOX + GAP) + 1e-6)
            inside = top - place[1] * (BOX + GAP)
            size = patch.get_width() / BOX, patch.get_height() / BOX, inside / BOX
            pale = patch.get_alpha() is not None
            numbers = tuple(round(number, 6) for number in size)
            found.setdefault(place, []).append((to_hex(patch.get_facecolor()), pale, *numbers))
    return found


def test_a_box_shows_its_owners_and_how_full_it_is():
    figure = blocks(SEQUENCES, 7, 4, columns=4)
    a, b, c = SERIES_COLORS[:3]
    assert boxes(figure) == {
        (0, 0): [(a, True, 1, 0.5, 0), (a, False, 1, 0.5, 0)]
        + [(b, True, 1, 0.5, 0.5), (b, False, 1, 0.5, 0.5)],
        (1, 0): [(a, True, 1, 0.5, 0), (a, False, 1, 0.5, 0)]
        + [(b, True, 1, 0.5, 0.5), (b, False, 0.75, 0.5, 0.5)],
        (3, 0): [(a, True, 1, 1, 0), (a, False, 0.5, 1, 0)],
        (1, 1): [(c, True, 1, 1, 0), (c, False, 0, 1, 0)],
    }
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == [str(block) for block in range(7)]
    key = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert key == ["a, 10 tokens", "b, 7 tokens", "c, 0 tokens"]
    alone = blocks({"a": ([0], 3)}, 2, 4).axes[0].get_legend().get_texts()
    assert [text.get_text() for text in alone] == ["a, 3 tokens"]


def test_a_free_block_of_a_known_prefix_has_a_dotted_frame():
    figure = blocks(SEQUENCES, 7, 4, known=[0, 2])
    frames = [patch.get_linestyle() for patch in figure.axes[0].patches if not patch.get_fill()]
    assert frames == ["-", "-", ":", "-", "-", "-", "-"]
    edges = [
        to_hex(patch.get_edgecolor()) for patch in figure.axes[0].patches if not patch.get_fill()
    ]
    assert edges == [INK, INK, GREY, INK, FAINT, INK, FAINT]
    again = blocks(SEQUENCES, 7, 4, known=iter([2]))  # read once
    assert [patch.get_linestyle() for patch in again.axes[0].patches].count(":") == 1


def test_all_boxes_and_the_key_are_on_the_picture():
    many = {f"request {i}": ([i], 1) for i in range(6)}
    for figure in (blocks(many, 7, 4, columns=2, title="t"), blocks({}, 5, 4, columns=9)):
        axes = figure.axes[0]
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for patch in axes.patches:
            x, y = patch.get_xy()
            assert left < x < x + patch.get_width() < right
            assert top < y < y + patch.get_height() < bottom
        assert (right - left, bottom - top) == pytest.approx(tuple(figure.get_size_inches()))
        numbers = {text.get_text(): text.get_position() for text in axes.texts}
        frames = [patch for patch in axes.patches if not patch.get_fill()]
        for number, frame in enumerate(frames):
            x, y = frame.get_xy()
            assert numbers[str(number)] == pytest.approx((x + BOX / 2, y + BOX / 2))
        styles = {frame.get_linestyle() for frame in frames}
        assert styles == {"-"}  # by default no block is known
    assert figure.get_size_inches()[0] < 5 * (BOX + GAP) + 0.5  # no column of room, and no key
    assert axes.get_legend() is None


def test_colours_start_again_after_the_last():
    ways = len(SERIES_COLORS) + 1
    figure = blocks({f"{i}": ([i], 4) for i in range(ways)}, ways, 4)
    colors = [to_hex(p.get_facecolor()) for p in figure.axes[0].patches if p.get_fill()][::2]
    assert colors == [*SERIES_COLORS, SERIES_COLORS[0]]
    key = [to_hex(patch.get_facecolor()) for patch in figure.axes[0].get_legend().get_patches()]
    assert key == colors


def test_words_and_size():
    figure = blocks(SEQUENCES, 7, 4, title="Paging")
    assert repr(figure) == (
        "Paging. 7 blocks of 4 slots, 3 of them free. a, 10 tokens: blocks 0, 1, 3. "
        "b, 7 tokens: blocks 0, 1. c, 0 tokens: blocks 5. Shared: blocks 0, 1. "
        "6 reserved slots are empty."
    )
    assert repr(blocks({"a": ([0], 1)}, 1, 4, alt="Mine.")) == "Mine."
    exactly = blocks({f"{i}": ([i], 1) for i in range(14)}, 14, 4).axes[0].get_legend()
    assert [text.get_text() for text in exactly.get_texts()][-2:] == ["12, 1 token", "13, 1 token"]
    assert "Paging" in [text.get_text() for text in figure.axes[0].texts]
    many = {f"request {i}": ([i], 1) for i in range(40)}
    figure = blocks(many, 64, 16)
    assert figure.axes[0].get_legend().get_texts()[-1].get_text() == "and 26 more"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png, _ = figure._repr_png_()
    assert len(png) < 60_000
    assert (
        repr(blocks({}, 1, 4)) == "1 blocks of 4 slots, 1 of them free. 0 reserved slots are empty."
    )


@pytest.mark.parametrize(
    ("sequences", "count", "message"),
    [
        ({}, 0, "0 blocks of 4 slots; there must be 1 or more of each"),
        ({"a": ([7], 1)}, 7, "a has block 7, but there are blocks 0 to 6"),
        ({"a": ([-1], 1)}, 7, "a has block -1"),
        ({"a": ([2, 2], 5)}, 7, r"a has a block twice in its table \[2, 2\]"),
        ({"a": ([2], 4), "b": ([3], 5)}, 7, "b has 5 tokens, but 1 blocks of 4"),
        ({"a": ([2], 5)}, 7, "a has 5 tokens, but 1 blocks of 4"),
    ],
)
def test_what_cannot_be_drawn(sequences, count, message):
    with pytest.raises(ValueError, match=message):
        blocks(sequences, count, 4)


def test_a_block_needs_a_slot():
    with pytest.raises(ValueError, match="2 blocks of 0 slots"):
        blocks({}, 2, 0)


def test_only_slots_with_a_token_are_filled():
    found = owners_of({"a": ([4, 2, 0], 3), "b": ([4, 7], 8)}, 4)
    assert found == {4: [("a", 3), ("b", 4)], 2: [("a", 0)], 0: [("a", 0)], 7: [("b", 4)]}


def test_blocks_of_one_slot():
    assert "1 blocks of 1 slots, 0 of them free." in repr(blocks({"a": ([0], 1)}, 1, 1))


def test_owners_keep_the_order_of_the_sequences():
    """Neither the order of their names nor that of their blocks."""
    figure = blocks({"b": ([5, 1], 6), "a": ([5, 1], 8), "c": ([5], 4)}, 6, 4)
    colors = [color for color, pale, *_ in boxes(figure)[5, 0] if pale]
    assert colors == list(SERIES_COLORS[:3])
    assert "Shared: blocks 1, 5. 0 reserved slots are empty." in repr(figure)
    assert "a, 0 tokens: blocks none." in repr(blocks({"a": ([], 0)}, 1, 4))


def test_twelve_boxes_in_a_row_the_title_above_and_the_key_beside():
    figure = blocks({"a": ([12], 1)}, 13, 4, title="t")
    (axes,) = figure.axes
    tops = [patch.get_y() for patch in axes.patches if not patch.get_fill()]
    assert tops == pytest.approx([0] * 12 + [BOX + GAP])
    (title,) = [text for text in axes.texts if text.get_text() == "t"]
    assert axes.get_ylim()[1] < title.get_position()[1] < 0
    figure.draw_without_rendering()
    key = axes.get_legend().get_window_extent()
    assert all(patch.get_window_extent().x1 < key.x0 for patch in axes.patches)
    assert key.y1 < title.get_window_extent().y0

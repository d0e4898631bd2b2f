"""Every box stands on its lane, at its time, in its kind's colour; overlapping ones share it."""

import matplotlib.colors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plots.style import PAPER, RANK_COLORS, SERIES_COLORS
from helpers.plots.timeline import KIND_COLORS, Box, readable_on, stack, timeline


def rectangles(figure):
    """(left, right, bottom, top, colour) of everything drawn."""
    for collection in figure.axes[0].collections:
        color = matplotlib.colors.to_hex(collection.get_facecolor()[0])
        for path in collection.get_paths():
            (left, bottom), (right, top) = path.get_extents().get_points()
            yield left, right, bottom, top, color


def labels(figure):
    return {text.get_text(): text.get_position() for text in figure.axes[0].texts}


def schedule():
    """Two stages, two micro-batches."""
    return [
        Box(lane=f"stage {s}", start=s + m, duration=1, label=str(10 * s + m), kind="forward")
        for s in range(2)
        for m in range(2)
    ]


def test_boxes_stand_where_and_when_they_should():
    figure = timeline(schedule(), xlabel="slots", title="a schedule")
    drawn = [
        (left, right, round((bottom + top) / 2))
        for left, right, bottom, top, _ in rectangles(figure)
    ]
    assert sorted(drawn) == [(0, 1, 0), (1, 2, 0), (1, 2, 1), (2, 3, 1)]
    assert repr(timeline(iter(schedule()))) == repr(timeline(schedule()))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0", "stage 1"]
    assert (axes.get_xlim(), axes.get_xlabel(), axes.get_title()) == ((0, 3), "slots", "a schedule")
    bottom, top = axes.get_ylim()
    assert bottom > top  # the first lane is the highest


def test_labels_stand_in_their_boxes_and_only_where_they_fit():
    boxes = [*schedule(), Box(lane="stage 0", start=2, duration=1e-3, label="too long for it")]
    found = labels(timeline(boxes))
    assert set(found) == {"0", "1", "10", "11"}
    assert found["10"][0] == 1.5
    assert found["10"][1] == pytest.approx(1, abs=0.03)
    assert found["1"] == (1.5, pytest.approx(0, abs=0.03))
    colors = {text.get_text(): text.get_color() for text in timeline(
        [Box(lane="a", start=0, duration=1, label="x", kind="forward"),
         Box(lane="a", start=1, duration=1, label="y", kind="idle")]).axes[0].texts}  # fmt: skip
    assert colors == {"x": "white", "y": "black"}
    # A label of many letters needs a longer box, on a picture of the same width.
    for letters, fits in ((9, True), (40, False)):
        boxes = [Box(lane="a", start=0, duration=1, label="x" * letters),
                 Box(lane="a", start=7, duration=1)]  # fmt: skip
        assert bool(labels(timeline(boxes))) == fits
    late = [Box(lane="a", start=1000, duration=1, label="x")]
    assert set(labels(timeline(late))) == {"x"}


def test_kinds_have_colours_and_a_legend():
    boxes = [
        Box(lane="a", start=0, duration=1, kind="backward"),
        Box(lane="a", start=1, duration=1, kind="mine"),
        Box(lane="a", start=2, duration=1, kind="yours"),
        Box(lane="a", start=3, duration=1),
    ]
    figure = timeline(boxes, colors={"mine": "#123456"})
    colors = [color for *_, color in sorted(rectangles(figure))]
    assert colors[:2] == [KIND_COLORS["backward"], "#123456"]
    assert len(set(colors)) == 4
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == ["backward", "mine", "yours"]
    assert colors[3] == KIND_COLORS[""]
    keys = [matplotlib.colors.to_hex(p.get_facecolor()) for p in figure.legends[0].get_patches()]
    assert keys == colors[:3]
    assert not timeline([Box(lane="a", start=0, duration=1)]).legends
    one = timeline([Box(lane="a", start=0, duration=1, kind="idle")])
    assert [text.get_text() for text in one.legends[0].get_texts()] == ["idle"]


def test_a_chosen_colour_comes_before_the_meaning_and_the_key_is_in_order_of_appearance():
    chosen = {"idle": "#123456", "rank 2": "#654321", "backward": "#abcdef"}
    boxes = [Box(lane="a", start=n, duration=1, kind=kind) for n, kind in enumerate(chosen)]
    figure = timeline(boxes, colors=chosen)
    assert [color for *_, color in sorted(rectangles(figure))] == list(chosen.values())
    (key,) = figure.legends
    assert [text.get_text() for text in key.get_texts()] == list(chosen)
    assert [matplotlib.colors.to_hex(p.get_facecolor()) for p in key.get_patches()] == list(
        chosen.values()
    )
    figure.draw_without_rendering()
    assert key.get_window_extent().y0 >= figure.axes[0].get_window_extent().y1


def test_boxes_need_no_order():
    times = ((5, 4, "late"), (0, 1, "early"), (6, 1, "late"))
    figure = timeline([Box(lane=lane, start=t, duration=d) for t, d, lane in times])
    assert figure.axes[0].get_xlim() == (0, 9)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["late", "early"]
    assert "late, 2 boxes from 5 to 9; early, 1 boxes from 0 to 1" in repr(figure)
    boxes = [Box(lane="a", start=t, duration=1) for t in (5, 2)]
    assert "a, 2 boxes from 2 to 6" in repr(timeline(boxes))
    boxes = [Box(lane=f"lane {n}", start=n, duration=1) for n in range(12)]
    assert "lane 11, 1 boxes from 11 to 12." in repr(timeline(boxes))


def test_no_label_is_wider_than_its_box():
    boxes = [Box(lane=f"{n}", start=0, duration=2, label="8" * n) for n in range(1, 25)]
    figure = timeline([*boxes, Box(lane="long", start=0, duration=20)])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    left, right = (axes.transData.transform((x, 0))[0] for x in (0, 2))
    assert len(axes.texts) > 3
    for text in axes.texts:
        box = text.get_window_extent()
        assert box.width < 1.1 * (right - left)
        assert (box.x0 + box.x1) / 2 == pytest.approx((left + right) / 2, abs=1)


def test_only_boxes_with_labels_have_a_light_edge():
    """Thousands of thin boxes with such an edge would be white."""
    for label, color in (("", KIND_COLORS["idle"]), ("x", PAPER)):
        figure = timeline([Box(lane="a", start=0, duration=1, label=label, kind="idle")])
        edge = figure.axes[0].collections[0].get_edgecolor()[0]
        assert matplotlib.colors.to_hex(edge) == color


def test_a_kind_means_its_colour_and_free_colours_start_again():
    kinds = ["rank 2", "all-reduce", *"abcdefgh"]
    boxes = [Box(lane="a", start=n, duration=1, kind=kind) for n, kind in enumerate(kinds)]
    colors = [color for *_, color in sorted(rectangles(timeline(boxes)))]
    assert colors == [
        RANK_COLORS[2], KIND_COLORS["communication"], *SERIES_COLORS, SERIES_COLORS[0]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("color", "readable"),
    [("#ff0000", "white"), ("#00ff00", "black"), ("#0000ff", "white"), ("#808080", "black")],
)
def test_labels_are_readable(color, readable):
    assert readable_on(color) == readable


def test_the_words_and_the_size():
    figure = timeline(schedule(), lanes=["stage 0", "x", "stage 1"], xlabel="slots", width=5)
    assert repr(figure) == (
        "A timeline of forward over slots. From the top: stage 0, 2 boxes from 0 to 2; x, empty; "
        "stage 1, 2 boxes from 1 to 3."
    )
    assert repr(timeline([Box(lane="a", start=1, duration=1)], title="t")) == (
        "t. A timeline over time. From the top: a, 1 boxes from 1 to 2."
    )
    assert tuple(figure.get_size_inches()) == pytest.approx((5, 3 * 0.34 + 0.6 + 0.3))
    plain = timeline([Box(lane="a", start=1, duration=1)], title="t")
    assert tuple(plain.get_size_inches()) == pytest.approx((8, 0.34 + 0.6 + 0.3))
    assert plain.axes[0].get_xlim() == (1, 2)
    assert timeline([]).axes[0].get_xlim() == (0, 1)


def test_what_overlaps_shares_the_lane():
    boxes = [
        Box(lane="a", start=0, duration=2, kind="range"),
        Box(lane="a", start=1, duration=2, kind="communication"),
        Box(lane="b", start=0, duration=1),
    ]
    drawn = {box[:2]: box for box in rectangles(timeline(boxes))}
    first, second, alone = drawn[0, 2], drawn[1, 3], drawn[0, 1]
    assert first[3] <= second[2]  # the first ends, downwards, before the second begins
    assert alone[3] - alone[2] > 1.5 * (first[3] - first[2])


def test_the_order_of_lanes_can_be_chosen_and_lanes_may_be_empty():
    figure = timeline(schedule(), lanes=["stage 1", "idle", "stage 0"])
    ticks = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert ticks == ["stage 1", "idle", "stage 0"]
    middles = {round((bottom + top) / 2) for _, _, bottom, top, _ in rectangles(figure)}
    assert middles == {0, 2}
    with pytest.raises(ValueError, match="stage 1"):
        timeline(schedule(), lanes=["stage 0"])
    with pytest.raises(ValueError, match="stage 1"):
        timeline(schedule(), lanes=[])


def test_lines_divide_groups_of_lanes():
    lanes = [f"stage {number}" for number in range(4)]
    figure = timeline(schedule(), lanes=lanes, group=2)
    assert [line.get_ydata()[0] for line in figure.axes[0].lines] == [1.5]
    five = timeline(schedule(), lanes=[*lanes, "a", "b"], group=2).axes[0].lines
    assert [line.get_ydata()[0] for line in five] == [1.5, 3.5]
    assert not timeline(schedule(), lanes=lanes).axes[0].lines


def test_odd_input():
    assert timeline([])._repr_png_()[0].startswith(b"\x89PNG")
    assert timeline([Box(lane="a", start=5, duration=0, label="x")])._repr_png_()[0]
    with pytest.raises(ValueError, match="negative"):
        Box(lane="a", start=0, duration=-1)


def test_thousands_of_boxes_are_few_artists():
    boxes = [Box(lane="a", start=n, duration=0.9, kind="forward") for n in range(5000)]
    figure = timeline(boxes)
    assert len(figure.axes[0].collections) == 1
    assert len(figure._repr_png_()[0]) < 60_000


def test_ends_that_differ_by_rounding_do_not_overlap():
    boxes = [Box(lane="a", start=0.1, duration=0.2), Box(lane="a", start=0.3, duration=1)]
    assert boxes[0].end > boxes[1].start
    assert stack(boxes) == ([0, 0], 1)
    assert stack([Box(lane="a", start=0, duration=1.001), boxes[1]])[1] == 2


@pytest.mark.parametrize("unit", [1e-10, 1e12])
def test_rounding_is_measured_by_the_times_themselves(unit):
    """In seconds of a trace or in nanoseconds of a clock."""
    first = Box(lane="a", start=0.1 * unit, duration=0.2 * unit)
    touching = Box(lane="a", start=0.3 * unit * (1 - 1e-15), duration=unit)
    assert touching.start < first.end
    assert stack([first, touching]) == ([0, 0], 1)
    assert stack([first, Box(lane="a", start=0.2 * unit, duration=unit)]) == ([0, 1], 2)


def test_a_range_stands_above_what_begins_with_it():
    boxes = [Box(lane="a", start=0, duration=1), Box(lane="a", start=0, duration=5)]
    assert stack(boxes) == ([1, 0], 2)


spans = st.tuples(st.integers(0, 20), st.integers(1, 6))


@given(st.lists(spans, min_size=1, max_size=12))
def test_no_two_boxes_of_a_row_overlap(times):
    boxes = [Box(lane="a", start=start, duration=duration) for start, duration in times]
    rows, count = stack(boxes)
    assert max(rows, default=0) < count
    for one, row in zip(boxes, rows, strict=True):
        for two, other in zip(boxes, rows, strict=True):
            if one is not two and row == other:
                assert min(one.end, two.end) <= max(one.start, two.start)
    # For intervals, as many rows as run at once are enough.
    assert count == max((sum(b.start <= t < b.end for b in boxes) for t in range(26)), default=1)

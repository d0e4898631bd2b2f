"""Every box stands on its lane, at its time, in its kind's colour; overlapping ones share it."""

import matplotlib.colors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plots.style import RANK_COLORS, SERIES_COLORS
from helpers.plots.timeline import KIND_COLORS, Box, pipelines, stack, timeline


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


def test_a_kind_means_its_colour_and_free_colours_start_again():
    kinds = ["rank 2", "all-reduce", *"abcdefgh"]
    boxes = [Box(lane="a", start=n, duration=1, kind=kind) for n, kind in enumerate(kinds)]
    colors = [color for *_, color in sorted(rectangles(timeline(boxes)))]
    assert colors == [
        RANK_COLORS[2], KIND_COLORS["communication"], *SERIES_COLORS, SERIES_COLORS[0]
    ]  # fmt: skip


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


@pytest.mark.parametrize(("stages", "named"), [((0, 1), False), ((0, 1, 2), True)])
def test_a_paler_colour_is_named_where_a_rank_has_several_stages(stages, named):
    pieces = [(stage % 2, stage, stage + 1, "F", stage, 0) for stage in stages]
    figure = pipelines({"x": pieces, "shorter": pieces[:1]}, shown=9)
    [key] = figure.legends
    colors = {
        t.get_text(): p.get_facecolor() for t, p in zip(key.texts, key.get_patches(), strict=True)
    }
    assert list(colors) == ["forward", *["paler: later stage"] * named]
    drawn = {matplotlib.colors.to_rgb(c.get_facecolor()[0]) for c in figure.axes[0].collections}
    assert {color[:3] for color in colors.values()} <= drawn

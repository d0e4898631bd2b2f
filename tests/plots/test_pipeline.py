"""Each computation stands on its rank's lane, at its time, in its kind's colour."""

import matplotlib.colors
import pytest

from helpers import plots
from helpers.plots.pipeline import KINDS, paler
from helpers.plots.style import FAINT

PIECES = [
    (0, 0.0, 1.0, "F", 0, 0),
    (1, 1.0, 2.0, "F", 1, 0),
    (1, 2.0, 4.0, "B", 1, 0),
    (0, 4.0, 6.0, "B", 0, 0),
]


def drawn(axes):
    """(left, right, lane, colour) of each computation; the grey lanes are left out."""
    lanes = len(axes.get_yticks())
    for collection in axes.collections:
        color = matplotlib.colors.to_hex(collection.get_facecolor()[0])
        for path in collection.get_paths():
            (left, bottom), (right, top) = path.get_extents().get_points()
            lane = round((bottom + top) / 2)
            assert 0 <= lane < lanes
            if color != "#d9d9d9":
                yield float(left), float(right), lane, color


def test_two_rows_with_their_own_axes_and_the_same_colours():
    slow = [(r, 10 * a, 10 * b, *rest) for r, a, b, *rest in PIECES]
    figure = plots.pipelines({"ideal": PIECES, "measured here": slow}, xlabel=["units", "ms"])
    forward, backward = KINDS["F"][1], KINDS["B"][1]
    first, second = figure.axes
    wanted = [(0, 1, 0, forward), (1, 2, 1, forward), (2, 4, 1, backward), (4, 6, 0, backward)]
    assert sorted(drawn(first)) == wanted
    assert sorted(drawn(second)) == [(10 * a, 10 * b, lane, c) for a, b, lane, c in wanted]
    assert [axes.get_title("left") for axes in figure.axes] == ["ideal", "measured here"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["units", "ms"]
    assert [text.get_text() for text in first.texts] == ["0"] * 4
    for axes in (first, second):
        assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
        assert axes.get_ylim() == (1.5, -0.5)  # rank 0 is the highest
    key = figure.legends[0]
    assert [text.get_text() for text in key.get_texts()] == ["forward", "backward"]
    assert [matplotlib.colors.to_hex(p.get_facecolor()) for p in key.get_patches()] == [
        forward, backward
    ]  # fmt: skip
    assert figure.alt.startswith(
        "ideal. A pipeline's timeline over units: rank 0 computes 3 between 0 and 6; rank 1"
    )
    assert "measured here. A pipeline's timeline over ms: rank 0" in figure.alt
    assert "rank 1 computes 3 between 1 and 4" in figure.alt
    assert "rank 1 computes 30 between 10 and 40" in figure.alt


def test_one_label_is_one_scale():
    slow = [(r, 10 * a, 10 * b, *rest) for r, a, b, *rest in PIECES]
    rows = {"mine": PIECES, "the optimum": slow}
    together = plots.pipelines(rows, xlabel="units")
    assert [axes.get_xlim() for axes in together.axes] == [(0, 60)] * 2
    idle = together.axes[0].collections[0].get_paths()[0].get_extents()
    assert (idle.x0, idle.x1) == (0, 6)  # the grey lane ends with its own row
    assert {axes.get_xlabel() for axes in together.axes} == {"units"}
    idle = together.axes[0].collections
    assert len([c for c in idle if matplotlib.colors.to_hex(c.get_facecolor()[0]) == FAINT]) == 2
    apart = plots.pipelines(rows, xlabel=["units", "ms"])
    assert [axes.get_xlim() for axes in apart.axes] == [(0, 6), (0, 60)]


def test_a_rank_s_further_stages_are_paler():
    pieces = [(0, 0, 1, "F", 0, 0), (0, 1, 2, "F", 3, 0)]
    colors = [color for *_, color in drawn(plots.pipelines({"x": pieces}).axes[0])]
    assert colors == [KINDS["F"][1], paler(KINDS["F"][1], 1)]
    assert colors[0] != colors[1]
    swapped = plots.pipelines({"x": [(0, 0, 1, "F", 3, 0), (0, 1, 2, "F", 0, 0)]})
    assert [color for *_, color in sorted(drawn(swapped.axes[0]))] == colors[::-1]
    assert [paler("#000000", chunk) for chunk in range(3)] == ["#000000", "#595959", "#939393"]


def test_a_stage_has_its_colour_before_the_stages_above_it_have_run():
    pieces = [(0, 0, 1, "F", 3, 0), (0, 1, 2, "F", 0, 0), (1, 2, 3, "F", 7, 0)]
    colors = [color for *_, color in drawn(plots.pipelines({"x": pieces}, shown=1).axes[0])]
    assert colors == [paler(KINDS["F"][1], 1)]
    first = plots.pipelines({"x": pieces}).axes[0]
    assert sorted(drawn(first))[-1][-1] == KINDS["F"][1]  # the only stage of its rank


def test_a_number_that_has_no_room_is_left_out():
    rows = {"short": [(0, 0, 1, "W", 0, 5)], "long": [(0, 0, 400, "I", 0, 123)]}
    short, long = plots.pipelines(rows).axes
    assert [[text.get_text() for text in axes.texts] for axes in (short, long)] == [[], ["123"]]
    short, long = plots.pipelines(rows, xlabel=["a", "b"]).axes
    assert [[text.get_text() for text in axes.texts] for axes in (short, long)] == [["5"], ["123"]]


def test_the_height_is_that_of_the_lanes():
    one = plots.pipelines({"x": PIECES}, width=5)
    pieces = [(rank, 0, 1, "F", 0, 0) for rank in range(6)]
    two = plots.pipelines({"x": PIECES, "y": pieces})
    assert (one.get_size_inches()[0], two.get_size_inches()[0]) == (5, 8)
    assert two.get_size_inches()[1] - one.get_size_inches()[1] == pytest.approx(6 * 0.32 + 0.85)
    low, high = (axes.get_subplotspec().get_gridspec().get_height_ratios() for axes in two.axes)
    assert low == high == pytest.approx([2 * 0.32 + 0.85, 6 * 0.32 + 0.85])


def test_a_part_of_the_pieces_with_counts():
    figure = plots.pipelines({"x": PIECES}, shown=3, counts=(1, 0))
    axes = figure.axes[0]
    assert len(list(drawn(axes))) == 3
    assert axes.get_xlim() == (0, 6)
    (frame,) = axes.patches
    assert (frame.get_x(), frame.get_width(), round(frame.get_y() + 0.4)) == (2, 2, 1)
    assert not frame.get_fill()
    assert [text.get_text() for text in axes.texts][-2:] == [" 1", " 0"]
    assert "held, by rank: 1, 0" in figure.alt
    assert [text.xy for text in axes.texts[-2:]] == [(1.0, 0), (1.0, 1)]
    assert "rank 0 computes 1 between 0 and 1; rank 1 computes 3" in figure.alt  # as shown
    late = plots.pipelines({"x": PIECES}, shown=2, counts=(0, 0, 0)[:2])
    assert late.axes[0].patches[0].get_width() == 1
    assert late.alt.endswith("Activations held, by rank: 0, 0.")
    whole = plots.pipelines({"x": PIECES}, counts=(4, 3))
    assert [text.get_text() for text in whole.axes[0].texts][-2:] == [" 4", " 3"]
    assert whole.alt.endswith("Activations held, by rank: 4, 3.")
    assert "held" not in plots.pipelines({"x": PIECES}).alt
    nothing = plots.pipelines({"x": PIECES}, shown=0)
    assert not list(drawn(nothing.axes[0]))
    assert not nothing.axes[0].patches


def test_odd_input():
    with pytest.raises(ValueError, match="at least one"):
        plots.pipelines({})
    with pytest.raises(ValueError, match="at least one"):
        plots.pipelines({"x": []})
    with pytest.raises(KeyError, match="there are F, B, I, W"):
        plots.pipelines({"x": [(0, 0, 1, "Q", 0, 0)]})
    with pytest.raises(KeyError, match="Q"):
        plots.pipelines({"x": [*PIECES, (0, 0, 1, "Q", 0, 0)]}, shown=1)
    assert plots.pipelines({"x": [(0, 2, 2, "F", 0, 0)]})._repr_png_()[0].startswith(b"\x89PNG")


def test_a_large_pipeline_is_a_small_picture():
    pieces = [(r, 2 * k, 2 * k + 1, "FB"[k % 2], r, k // 2) for r in range(8) for k in range(64)]
    assert len(plots.pipelines({"x": pieces})._repr_png_()[0]) < 60_000


def test_a_timeline_that_does_not_begin_at_zero_has_its_numbers():
    (axes,) = plots.pipelines({"late": [(0, 1000, 1001, "W", 0, 5)]}).axes
    assert [text.get_text() for text in axes.texts] == ["5"]
    assert axes.get_xlim() == (1000, 1001)


def test_the_key_has_the_kinds_of_all_rows_in_one_order():
    rows = {"a": [(0, 0, 1, "W", 0, 0)], "b": [(0, 0, 1, "I", 0, 0), (0, 1, 2, "F", 0, 0)]}
    figure = plots.pipelines(rows)
    (key,) = figure.legends
    names = ["forward", "gradient of the input (I)", "gradient of the weights (W)"]
    assert [text.get_text() for text in key.get_texts()] == names
    assert len({color for _, color in KINDS.values()}) == 4
    assert [color for *_, color in drawn(figure.axes[0])] == [KINDS["W"][1]]
    assert figure.axes[0].get_xlabel() == "time"


def test_pieces_need_no_order_and_a_rank_may_have_none():
    """A row may begin with a later rank and end with a piece that ends before another."""
    pieces = [(2, 5, 9, "F", 2, 0), (0, 1, 4, "F", 0, 0), (0, 0, 1, "F", 0, 1)]
    figure = plots.pipelines({"x": pieces})
    (axes,) = figure.axes
    assert axes.get_xlim() == (0, 9)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]
    assert [lane for _, _, lane, _ in sorted(drawn(axes))] == [0, 0, 2]
    assert figure.get_size_inches()[1] == pytest.approx(3 * 0.32 + 0.85 + 0.35)
    assert "rank 0 computes 4 between 0 and 4; rank 2 computes 4 between 5 and 9." in figure.alt
    assert not axes.xaxis.get_gridlines()[0].get_visible()  # grey lanes mean idle time

"""The film: the bytes after each event, what is drawn of them, and records that cannot be."""

import itertools

import pytest
from matplotlib.colors import to_hex

from helpers.plots.film import begin, bytes_held, film, frame, fullest, stacked, totals
from helpers.plots.style import INK, MEMORY_COLORS

SIZES = {"embedding": 400, "blocks.0": 1200}


def event(time, unit, kind, state, nbytes):
    return {"time": time, "unit": unit, "kind": kind, "state": state, "bytes": nbytes}


def a_step():
    """Two units on two ranks: a forward with one unit gathered ahead, and the backward of one."""
    block = "blocks.0"
    return [
        *(event(0.0, unit, "parameters", "held", size // 2) for unit, size in SIZES.items()),
        event(0.001, "embedding", "gathered", "in use", 400),
        event(0.002, block, "gathered", "gathering", 1200),
        event(0.003, "embedding", "gathered", "freed", 0),
        event(0.003, block, "gathered", "in use", 1200),
        event(0.004, block, "gradients", "filling", 1200),
        event(0.005, block, "gathered", "freed", 0),
        event(0.006, block, "gradients", "sending", 1200),
        event(0.007, block, "gradient shard", "held", 600),
        event(0.007, block, "gradients", "freed", 0),
        event(0.008, block, "gradient shard", "freed", 0),
    ]


def test_an_event_replaces_the_one_before():
    held = bytes_held(a_step(), 6)
    assert held == {
        ("embedding", "parameters"): 200,
        ("blocks.0", "parameters"): 600,
        ("embedding", "gathered"): 0,
        ("blocks.0", "gathered"): 1200,
    }
    after = bytes_held(a_step())
    assert {place: n for place, n in after.items() if n} == bytes_held(a_step(), 2)


def test_totals():
    kinds = totals(a_step())
    assert kinds["parameters"] == [200] + 11 * [800]
    assert kinds["gathered"] == [0, 0, 400, 1600, 1200, 1200, 1200, 0, 0, 0, 0, 0]
    assert kinds["gradient shard"][-3:] == [600, 600, 0]
    assert (begin(a_step()), fullest(a_step())) == (2, 7)
    sizes = [4, 2, 5, 0]
    again = [event(time, "a", "gathered", "ready", size) for time, size in enumerate(sizes)]
    assert totals(again) == {"gathered": sizes}
    twice = [event(time, "a", "gathered", "ready", size) for time, size in enumerate([2, 9, 4, 9])]
    assert fullest(twice) == 2  # the first of equal moments


def bars(axes):
    """{(row, colour or hatch): width} of what is drawn full, and the same of what has an edge."""
    full, edged = {}, {}
    for bar in axes.patches:
        if bar.get_facecolor()[3] and bar.get_width():
            row = round(bar.get_y() + bar.get_height() / 2)
            color = bar.get_edgecolor() if bar.get_hatch() else bar.get_facecolor()
            full[row, to_hex(color), bool(bar.get_hatch())] = bar.get_width()
            if bar.get_linewidth() and to_hex(bar.get_edgecolor()) == INK:
                edged[row, to_hex(color)] = bar.get_width()
    return full, edged


def test_a_frame_shows_messages_and_use():
    full, edged = bars(frame(a_step(), 4).axes[0])
    own, gathered = MEMORY_COLORS["parameters"], MEMORY_COLORS["gathered"]
    assert full == {
        (0, own, False): 200,
        (1, own, False): 600,
        (0, gathered, False): 400,
        (1, gathered, True): 1200,
    }
    assert edged == {(0, gathered): 400}
    full, _ = bars(frame(a_step(), 5).axes[0])
    assert (0, gathered, False) not in full  # freed


def test_kinds_have_one_place_in_every_row_and_never_overlap():
    axes = frame(a_step(), 7).axes[0]
    places = {}
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        places.setdefault(row, set()).add((bar.get_x(), bar.get_width()))
    for found in places.values():
        widest = {left: max(width for at, width in found if at == left) for left, _ in found}
        for (left, width), (after, _) in itertools.pairwise(sorted(widest.items())):
            assert left + width <= after
    assert {left for left, _ in places[0]} == {left for left, _ in places[1]}


def test_the_words_of_a_frame():
    said = repr(frame(a_step(), 4, rank=1))
    assert said == (
        "rank 1, event 4 of 12, 2.00 ms: blocks.0 gathered gathering. The rank holds 2.4 kB. "
        "At work: embedding gathered in use, blocks.0 gathered gathering."
    )
    last = [*a_step()[:-1], a_step()[-1] | {"phase": "update"}]
    assert "ms: update, blocks.0 gradient shard freed" in repr(frame(last, 12))


def test_stacked():
    picture = stacked(a_step(), title="a step")
    axes = picture.axes[0]
    tops = [c.get_paths()[0].vertices[:, 1].max() for c in axes.collections]
    assert max(tops) == 3.2  # kB: 800 + 1200 + 1200
    assert axes.get_xlim() == (2, 13)
    assert axes.get_title() == "a step"
    assert "800 bytes before the step, 3.2 kB at most, 800 bytes at the end" in repr(picture)


def test_the_film_begins_with_what_the_rank_has():
    shown = film(a_step(), rank=3)
    assert (shown.start, shown.last) == (5, 10)
    assert film(iter(a_step())).last == 10
    assert repr(film(a_step())).startswith("rank 0, event 7 of 12")
    assert repr(frame(a_step(), 1)).startswith("rank 0, event 1 of 12")
    assert "rank 3, event 7 of 12" in repr(shown)
    assert "event 2 of 12" in repr(shown.draw(0))
    assert "event 12 of 12" in repr(shown.draw(shown.last))
    assert len(shown.picture()._repr_png_()[0]) < 60_000


@pytest.mark.parametrize(
    "wrong",
    [
        event(0.0, "blocks.0", "parameters", "held", 1),  # back in time
        event(1.0, "blocks.0", "parameters", "hold", 1),
        event(1.0, "blocks.0", "parameters", "held", -1),
        event(1.0, "blocks.0", "parameters", "freed", 1),
    ],
)
def test_a_record_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="event 13 of the film cannot be"):
        film([*a_step(), wrong])


def test_events_that_are_not_there():
    with pytest.raises(ValueError, match="1 to 12, not 13"):
        frame(a_step(), 13)
    with pytest.raises(ValueError, match="1 to 12, not 0"):
        frame(a_step(), 0)
    with pytest.raises(ValueError, match="at least one"):
        film([])


def test_the_frame_marks_its_moment_and_names_the_looks():
    picture = frame(a_step(), 4, rank=1)
    rows, below = picture.axes
    assert rows.get_title("left") == (
        "rank 1, event 4 of 12, 2.00 ms: blocks.0 gathered gathering. 2.4 kB"
    )
    assert [4, 4] in [list(line.get_xdata()) for line in below.lines]
    assert [label.get_text() for label in rows.get_yticklabels()] == ["embedding", "blocks.0"]
    bottom, top = rows.get_ylim()
    assert bottom > top  # the first unit is the highest
    key = [text.get_text() for text in rows.get_legend().get_texts()]
    assert key == [
        *("parameters", "gathered", "gradients", "gradient shard"), "in a message", "in use"
    ]  # fmt: skip
    looks = [(p.get_hatch(), p.get_linewidth() > 1.2) for p in rows.get_legend().get_patches()[-2:]]
    assert looks == [("////", False), (None, True)]
    assert below.get_legend() is None
    assert below.get_xlim() == (2, 13)  # the whole step
    assert repr(frame(a_step(), 1, alt="Mine.")) == "Mine."
    assert picture.get_size_inches()[1] < frame([*a_step(), event(1, "c", "logits", "held", 1)], 1
                                                ).get_size_inches()[1]  # fmt: skip


def test_messages_in_and_out_look_different():
    hatches = []
    for number, color in ((4, "gathered"), (9, "gradients")):
        (bar,) = [bar for bar in frame(a_step(), number).axes[0].patches if bar.get_hatch()]
        assert to_hex(bar.get_edgecolor()) == MEMORY_COLORS[color]
        hatches.append(bar.get_hatch())
    assert hatches == ["////", "\\\\\\\\"]


def test_an_empty_place_is_an_outline_as_wide_as_the_most_bytes():
    axes = frame(a_step(), 1).axes[0]
    empty = sorted(
        (round(bar.get_y() + 0.33), bar.get_width())
        for bar in axes.patches if not bar.get_facecolor()[3] and bar.get_width()
    )  # fmt: skip
    assert empty == [(0, 200), (0, 400), (1, 600), (1, 600), (1, 1200), (1, 1200)]
    left, right = axes.get_xlim()
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert left < min(ends)[0] == 0
    assert max(end for _, end in ends) < right
    assert right == pytest.approx(1.08 * (600 + 1200 + 1200 + 600))  # the kinds, and four gaps
    grows = [event(time, "a", "gathered", "ready", size) for time, size in enumerate([2, 6, 4])]
    (outline, _) = frame(grows, 1).axes[0].patches
    assert outline.get_width() == 6


def test_what_is_filled_updated_or_used_has_a_dark_edge():
    for state in ("in use", "filling", "updating", "held", "ready"):
        _, edged = bars(frame([event(0.0, "a", "gathered", state, 8)], 1).axes[0])
        assert bool(edged) == (state in ("in use", "filling", "updating"))


def test_stacked_marks_the_most_bytes():
    picture = stacked(a_step())
    (axes,) = picture.axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[7, 7]]
    assert [(text.get_text(), text.xy[0]) for text in axes.texts] == [("most bytes", 7)]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("events of the step", "kB")
    assert [to_hex(area.get_facecolor()[0]) for area in axes.collections] == [
        MEMORY_COLORS[kind] for kind in ("parameters", "gathered", "gradients", "gradient shard")
    ]
    key = [text.get_text() for text in axes.get_legend().get_texts()]
    assert key == ["parameters", "gathered", "gradients", "gradient shard"]
    assert axes.get_title() == ""
    assert repr(stacked(a_step(), alt="Mine.")) == "Mine."
    # Each state lasts until the next event: after the last one, too.
    edges = axes.collections[0].get_paths()[0].vertices
    assert edges[:, 0].max() == 13
    assert [2, 0.2] in edges.tolist()  # 200 bytes until event 2, not until event 1


def test_a_film_without_a_list_at_the_start():
    one = [event(0.0, "a", "gathered", "in use", 8), event(1.0, "a", "gathered", "freed", 0)]
    assert (begin(one), begin(a_step()[:2])) == (1, 2)
    assert (film(one).start, film(one).last) == (0, 1)
    shrinking = [event(0.0, "a", "parameters", "held", 8), event(0.0, "a", "parameters", "held", 2)]
    assert (film(shrinking).start, film(shrinking).last) == (0, 0)

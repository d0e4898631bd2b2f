"""Each message is a bar in its strategy's column, in the row of its moment."""

from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex

from helpers.plots.traffic_diff import BAR, COLORS, MARK, traffic_diff


def message(phase, during, kind, layers, wire):
    return SimpleNamespace(phase=phase, during=during, kind=kind, layers=layers, wire=wire,
                           payload=2.0 * (wire or 10), call="all_reduce")  # fmt: skip


OURS = [
    message("forward", "a", "parameters", {"a": 80.0}, 40.0),
    message("forward", "a", "parameters", {"b": 40.0}, 20.0),
    message("backward", "b", "gradients", {"b": 40.0}, None),
    message("update", "", "other", {}, 8.0),
]
THEIRS = [
    message("forward", "", "parameters", {"a": 80.0, "b": 40.0}, 60.0),
    message("backward", "", "parameters", {"b": 40.0}, 20.0),
    message("backward", "", "parameters", {"b": 40.0}, 20.0),
    message("backward", "", "gradients", {"a": 80.0, "b": 40.0}, 60.0),
]


def test_bars_and_labels():
    picture = traffic_diff({"ours": OURS, "theirs": THEIRS}, ["a", "b"], title="stage 3")
    (axes,) = picture.axes
    bars = [(int(p.get_x()), p.get_y(), p.get_width()) for p in axes.patches]
    longest = max(width for *_, width in bars)
    assert longest == pytest.approx(BAR)
    assert [round(width / longest * 60) for *_, width in bars] == [40, 20, 20, 8, 60, 40, 60]
    assert [column for column, *_ in bars] == [0, 0, 0, 0, 1, 1, 1]
    rows = [y for _, y, _ in bars[:4]]
    assert rows == sorted(set(rows))  # no bar covers another
    assert bars[4][1] < rows[0]  # before the first layer
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [
        "forward",
        "forward a",
        "backward begins",
        "backward b",
        "backward ends",
        "update",
    ]
    labels = [text.get_text().strip() for text in axes.texts]
    assert labels == ["a", "b", "b", "all_reduce", "a + 1 more", "b ×2", "a + 1 more"]
    key = [text.get_text() for text in axes.get_legend().get_texts()]
    assert key == ["parameters", "gradients", "other"]
    assert len(set(COLORS.values())) == 4
    kinds = ["parameters", "parameters", "gradients", "other"]
    kinds += ["parameters", "parameters", "gradients"]
    assert [to_hex(p.get_facecolor()) for p in axes.patches] == [COLORS[kind] for kind in kinds]
    assert [to_hex(p.get_facecolor()) for p in axes.get_legend().get_patches()] == [
        COLORS[kind] for kind in key
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["ours", "theirs"]
    assert axes.get_title() == "stage 3"
    # Six moments with seven rows, and half a row between two moments; 0.17 inches each.
    assert axes.get_ylim() == (10, 0)
    assert picture.get_size_inches()[1] == pytest.approx(0.17 * 10 + 0.9)
    bottom, top = axes.get_ylim()
    assert top < min(y for _, y, _ in bars) < max(y for _, y, _ in bars) + 0.8 < bottom
    # The name of a moment is at its first bar, the line between two moments above it.
    first = dict(zip(names, [bars[4][1], rows[0], bars[5][1], rows[2], bars[6][1], rows[3]],
                     strict=True))  # fmt: skip
    assert list(axes.get_yticks()) == pytest.approx([y + 0.4 for y in first.values()])
    between = [line.get_ydata()[0] for line in axes.lines[: len(names) - 1]]
    assert all(line < y for line, y in zip(between, list(first.values())[1:], strict=True))
    assert all(line > y + 0.8 for line, y in zip(between, first.values(), strict=False))
    for text, patch in zip(axes.texts, axes.patches, strict=True):
        x, y = text.get_position()
        assert x == pytest.approx(patch.get_x() + patch.get_width())
        assert patch.get_y() < y < patch.get_y() + patch.get_height()
    assert "stage 3. The messages of a step in 6 moments, from forward to update. " in repr(picture)
    assert "ours: 88 bytes in 4 messages; theirs: 160 bytes in 4 messages" in repr(picture)


def test_the_backward_goes_through_the_layers_in_reverse():
    names = [(phase, layer) for phase in ("backward", "forward") for layer in ("a", "b")]
    sent = [message(phase, layer, "gradients", {layer: 8.0}, 8.0) for phase, layer in names]
    (axes,) = traffic_diff({"ours": sent}, ["a", "b"]).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["forward a", "forward b", "backward b", "backward a"]


def test_a_message_that_this_rank_only_receives_is_a_mark():
    sent = [
        message("forward", "a", "parameters", {"a": 80.0}, 0.0),
        message("update", "", "other", {}, 8.0),
    ]
    picture = traffic_diff({"ours": sent}, ["a"])
    assert [bar.get_width() for bar in picture.axes[0].patches] == pytest.approx([MARK, BAR])
    assert "ours: 8 bytes in 2 messages" in repr(picture)


def test_no_bar_is_longer_than_the_longest():
    """Of equal messages that share a bar, the sum counts."""
    equal = message("forward", "a", "parameters", {"a": 80.0}, 30.0)
    sent = [equal, equal, equal, message("update", "", "other", {}, 45.0)]
    (axes,) = traffic_diff({"ours": sent}, ["a"]).axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([BAR, BAR / 2])
    labels = [(text.get_text().strip(), text.get_position()[0]) for text in axes.texts]
    assert labels == [("a ×3", pytest.approx(BAR)), ("all_reduce", pytest.approx(BAR / 2))]


def test_messages_that_differ_do_not_share_a_bar():
    def sent(**other):
        return SimpleNamespace(
            **vars(message("update", "", "activations", {"a": 1.0}, 8.0)) | other
        )

    stream = [
        sent(),
        sent(kind="gradients"),
        sent(call="all_gather"),
        sent(layers={"b": 1.0}),
        sent(),
        sent(call="broadcast"),
    ]
    (axes,) = traffic_diff({"x": stream, "y": [sent(), sent(wire=4.0)]}, ["a", "b", "c"]).axes
    labels = [text.get_text().strip() for text in axes.texts]
    assert labels == ["a", "a", "a", "b", "a", "a", "a ×2"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "gradients", "activations"
    ]  # fmt: skip


def test_labels_of_several_layers_or_none():
    def sent(layers, kind="gradients"):
        return message("update", "", kind, layers, 8.0)

    several = [{"c": 1.0, "a": 1.0, "b": 2.0}, {"b": 0, "c": 3}, {}, {"z": 1}]
    stream = [*map(sent, several), sent({}, "other")]
    (axes,) = traffic_diff({"x": stream}, ["a", "b", "c"]).axes
    labels = [text.get_text().strip() for text in axes.texts]
    assert labels == ["a + 2 more", "c", "gradients", "gradients", "all_reduce"]


def test_the_moments_before_and_after_the_layers():
    phases = [
        ("backward", "", "activations"),
        ("backward", "", "gradients"),
        ("forward", "", "other"),
    ]
    sent = [message(phase, during, kind, {}, 8.0) for phase, during, kind in phases]
    picture = traffic_diff({"ours": sent}, ["a"], width=5)
    (axes,) = picture.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["forward", "backward begins", "backward ends"]
    assert axes.get_xlim()[1] == 1
    assert picture.get_size_inches()[0] == 5
    assert not [line for line in axes.lines if list(line.get_ydata()) == [0, 1]]  # one column
    wide = traffic_diff({"a": sent, "b": sent, "c": sent}, ["a"]).axes[0]
    columns = [line.get_xdata()[0] for line in wide.lines if list(line.get_ydata()) == [0, 1]]
    assert [round(x) for x in columns] == [1, 2]


def test_each_strategy_has_its_name_above_its_bars():
    other = message("forward", "", "other", {}, 8.0)
    several = [message("forward", "", kind, {}, 8.0) for kind in ("other", "gradients", "other")]
    picture = traffic_diff({"zero": [other, other], "all": several, "b": [other]}, ["a"])
    (axes,) = picture.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["zero", "all", "b"]
    assert picture.get_size_inches()[0] == 8
    left, right = axes.get_xlim()
    assert left > -0.1
    assert right == 3  # the last column is as wide as the others
    for bar in axes.patches:
        assert bar.get_x() + bar.get_width() < int(bar.get_x()) + 0.5  # room for the label
    assert axes.texts[0].get_text() == " all_reduce ×2"
    assert axes.get_ylim() == (3.5, 0)  # a row for each bar of the longest list
    picture.draw_without_rendering()
    frame = axes.get_window_extent()
    for column, label in enumerate(axes.get_xticklabels()):
        assert label.get_window_extent().y0 >= frame.y1
        assert column + 0.2 < label.get_position()[0] < column + 0.7
    assert axes.get_legend().get_window_extent().y1 <= frame.y0


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="no strategy sends a message"):
        traffic_diff({"ours": []}, ["a"])

"""Every row is drawn twice, in the batch and on its rank, in its rank's colour."""

import matplotlib.colors
import pytest

from helpers.plots.replicas import replicas
from helpers.plots.style import RANK_COLORS


def drawn(figure):
    """(label, colour) of each box, in the order in which they were drawn."""
    axes = figure.axes[0]
    titles = 6
    labels = [text.get_text() for text in axes.texts if text.get_text()][titles:]
    colors = [matplotlib.colors.to_hex(box.get_facecolor()) for box in axes.patches]
    return list(zip(labels, colors, strict=True))


def test_each_row_stands_in_the_batch_and_on_its_rank():
    boxes = drawn(replicas([["a", "b"], ["c"]]))
    for row, rank in (("a", 0), ("b", 0), ("c", 1)):
        assert [color for label, color in boxes if label == row] == [RANK_COLORS[rank]] * 2


def test_each_rank_has_a_replica_and_a_gradient_even_without_rows():
    boxes = drawn(replicas([[1], [2], []]))
    labels = [label for label, _ in boxes]
    for rank in range(3):
        assert labels.count(f"rank {rank}") == 1
        assert (f"$g_{{{rank}}}$", RANK_COLORS[rank]) in boxes
    assert labels.count(r"$\bar g$") == 3
    assert labels.count(r"$\bar g = \frac{1}{N}\sum_r g_r$") == 1
    assert len({color for label, color in boxes if label.startswith("rank")}) == 1  # equal models
    assert len({color for label, color in boxes if label == r"$\bar g$"}) == 1  # equal updates


def test_boxes_stand_in_the_columns_of_their_titles():
    """Rows below each other, in rank order; what a rank does, in its own lane."""
    figure = replicas([["a", "b", "c"], ["d"], []])
    axes = figure.axes[0]
    titles, labels = [t for t in axes.texts if t.get_text()][:6], []
    boxes = [text for text in axes.texts if text.get_text()][6:]
    column_of = {text.get_position()[0]: text.get_text() for text in titles}
    assert [column_of[x] for x in sorted(column_of)] == [
        "global batch\nof 4 rows", "shard", "the same model\non every rank",
        "gradient of\nits own shard", "all-reduce", "the same\nupdate",
    ]  # fmt: skip
    for text, box in zip(boxes, axes.patches, strict=True):
        x, y = text.get_position()
        assert (box.get_x() + box.get_width() / 2, box.get_y() + box.get_height() / 2) == (
            pytest.approx((x, y))
        )
        labels.append((column_of[x].split("\n")[0], text.get_text(), y))
    lane, half = 3.6, 1.8  # the most rows, and a gap
    rows = {text: y for column, text, y in labels if column == "shard"}
    assert rows == pytest.approx({"a": half - 1, "b": half, "c": half + 1, "d": lane + half})
    batch = {text: y for column, text, y in labels if column == "global batch"}
    middle = 3 * lane / 2
    assert batch == pytest.approx(
        {"a": middle - 1.5, "b": middle - 0.5, "c": middle + 0.5, "d": middle + 1.5}
    )
    for column in ("the same model", "gradient of", "the same"):
        found = [y for name, _, y in labels if name == column]
        assert found == pytest.approx([half, lane + half, 2 * lane + half])
    arrows = [a.arrowprops["arrowstyle"] for a in axes.texts if hasattr(a, "arrow_patch")]
    assert set(arrows) == {"->"}
    mean = axes.patches[-1]  # over all ranks
    assert mean.get_y() < half < 2 * lane + half < mean.get_y() + mean.get_height() < 3 * lane
    left, right = axes.get_xlim()
    assert all(left < b.get_x() < b.get_x() + b.get_width() < right for b in axes.patches)
    bottom, top = axes.get_ylim()
    assert top < -1 < 3 * lane < bottom
    starts = [a.xyann for a in axes.texts if hasattr(a, "arrow_patch")]
    ends = [a.xy for a in axes.texts if hasattr(a, "arrow_patch")]
    assert len(starts) == 15  # of each rank: from the batch, and four along its lane
    assert [y for _, y in ends] == pytest.approx([half] * 5 + [lane + half] * 5 + [9.0] * 5)
    assert [starts[k][1] for k in (0, 5, 10)] == pytest.approx([middle - 0.5, middle + 1.5, 7.4])
    assert all(start[0] < end[0] for start, end in zip(starts, ends, strict=True))


def test_the_words():
    said = repr(replicas([["a", 2], [], [3]], noun="tokens"))
    assert "A global batch of 3 tokens is cut into shards. Rank 0: a, 2; rank 1: none; " in said
    assert "Rank 0: A b; rank 1: C. " in repr(replicas([["A b"], ["C"]]))  # rows keep their case
    assert "rank 2: 3. Every rank has the same model" in said
    low, high = (replicas([[1]] * ranks).get_size_inches()[1] for ranks in (1, 4))
    assert high - low == pytest.approx(3 * 2.6 * 0.34)
    heights = {replicas(s).get_size_inches()[1] for s in ([[1], [2, 3, 4]], [[2, 3, 4], [1]])}
    assert len(heights) == 1  # the longest shard counts


def test_colours_start_again_after_the_last():
    ranks = len(RANK_COLORS) + 2
    boxes = drawn(replicas([[f"row {rank}"] for rank in range(ranks)]))
    for rank in range(ranks):
        colors = [color for label, color in boxes if label == f"row {rank}"]
        assert colors == [RANK_COLORS[rank % len(RANK_COLORS)]] * 2


def test_titles_count_the_batch():
    texts = [text.get_text() for text in replicas([[1, 2], [3]], noun="tokens").axes[0].texts]
    assert "global batch\nof 3 tokens" in texts


def test_no_ranks():
    with pytest.raises(ValueError, match="no ranks"):
        replicas([])


def test_the_drawing_fills_the_picture():
    axes = replicas([[1], [2]]).axes[0]
    assert axes.get_position().bounds == (0, 0, 1, 1)
    assert not axes.axison

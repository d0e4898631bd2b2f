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

"""Bars and curves of a running call."""

import base64

from helpers.plots.live import bars_html, bars_text, curve_figure, curve_output


def test_bars():
    bars = {("fit", 1): (5, 10), ("fit", 0): (10, 10), ("", 2): (7, None)}
    assert bars_text(bars) == "rank 2: 7, fit rank 0: 10/10, fit rank 1: 5/10"
    page = bars_html(bars)
    assert page.count("<tr>") == 3
    assert "width:50%" in page
    assert "10/10" in page
    ranks = [page.index(f"rank {rank}") for rank in (2, 0, 1)]
    assert ranks == sorted(ranks)  # by label, then by rank


def test_an_empty_loop_has_a_full_bar_of_nothing():
    assert "0/0" in bars_html({("", 0): (0, 0)})


def test_a_label_is_text_whatever_is_in_it():
    """Neither HTML for the notebook, nor commands for the terminal, nor a line of its own."""
    bars = {("<img src=x>\x1b]0;title\x07\n[rank 9] ok é", 0): (1, 2)}
    assert "<img" not in bars_html(bars)
    assert "&lt;img src=x&gt;" in bars_html(bars)
    assert bars_text(bars) == "<img src=x>\\x1b]0;title\\x07\\n[rank 9] ok é rank 0: 1/2"
    assert "\x1b" not in bars_html(bars)
    assert len(bars_text({("x" * 10_000, 0): (1, 2)})) < 100


def test_a_curve_for_each_rank():
    figure = curve_figure("loss", {1: ([0, 1], [3.0, 2.0]), 0: ([0, 1], [4.0, 1.0])})
    axes = figure.axes[0]
    assert [line.get_label() for line in axes.lines] == ["rank 0", "rank 1"]
    assert list(axes.lines[0].get_ydata()) == [4.0, 1.0]
    assert axes.get_ylabel() == "loss"


def test_png_is_small():
    steps = list(range(500))
    data, _ = curve_output("loss", dict.fromkeys(range(4), (steps, steps)))
    data = base64.b64decode(data["image/png"])
    assert data.startswith(b"\x89PNG")
    assert len(data) < 60_000

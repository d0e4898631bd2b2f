"""Bars and curves of a running call."""

import base64

from helpers.plots.live import bars_html, bars_text, curve_output, printable
from helpers.plots.style import RANK_COLORS


def test_bars():
    bars = {("fit", 1): (5, 10), ("fit", 0): (10, 10), ("", 2): (7, None)}
    assert bars_text(bars) == "rank 2: 7, fit rank 0: 10/10, fit rank 1: 5/10"
    page = bars_html(bars)
    assert page.count("<tr>") == 3
    assert "width:50%" in page
    assert "10/10" in page
    assert [f"width:{share}%" in page for share in (100, 50, 0)] == [True, True, False]
    assert [f"background:{color};" in page for color in RANK_COLORS[:4]] == [True] * 3 + [False]
    assert "<td style='text-align:left'>7</td>" in page  # of a loop without an end
    assert page.count("width:100%") == 2
    ranks = [page.index(f"rank {rank}") for rank in (2, 0, 1)]
    assert ranks == sorted(ranks)  # by label, then by rank


def test_ranks_are_numbers_and_shares_are_rounded():
    bars = {("", 10): (1, 3), ("", 2): (2, 3)}
    page = bars_html(bars)
    assert page.index("rank 2") < page.index("rank 10")
    assert page.index("width:67%") < page.index("width:33%")
    assert bars_text(bars) == "rank 2: 2/3, rank 10: 1/3"


def test_an_empty_loop_has_a_full_bar_of_nothing():
    assert "0/0" in bars_html({("", 0): (0, 0)})
    assert "width:0%" in bars_html({("", 0): (0, 0)})
    assert bars_text({("", 0): (0, 0)}) == "rank 0: 0/0"


def test_a_label_is_text_whatever_is_in_it():
    """Neither HTML for the notebook, nor commands for the terminal, nor a line of its own."""
    bars = {("<img src=x>\x1b]0;title\x07\n[rank 9] ok é", 0): (1, 2)}
    assert "<img" not in bars_html(bars)
    assert "&lt;img src=x&gt;" in bars_html(bars)
    assert bars_text(bars) == "<img src=x>\\x1b]0;title\\x07\\n[rank 9] ok é rank 0: 1/2"
    assert "\x1b" not in bars_html(bars)
    assert len(bars_text({("x" * 10_000, 0): (1, 2)})) < 100
    assert printable("x" * 80) == "x" * 80
    assert printable("x" * 81) == "x" * 79 + "…"
    assert printable(7) == "7"


def test_png_is_small():
    steps = list(range(500))
    data, metadata = curve_output("loss", dict.fromkeys(range(4), (steps, steps)))
    assert metadata["image/png"]["alt"] == data["text/plain"]
    assert "A line chart over step (" in data["text/plain"]
    assert (metadata["image/png"]["width"], metadata["image/png"]["height"]) == (416, 208)
    data = base64.b64decode(data["image/png"])
    assert data.startswith(b"\x89PNG")
    assert len(data) < 60_000

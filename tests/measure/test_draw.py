"""Measurements as text, as a table and as bars, each with the unit that reads best."""

import pytest

from helpers.measure.draw import bars, seconds_text, table, text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (4000.0, "4000 s"),
        (90.0, "90 s"),
        (0.9996, "1 s"),
        (1.0, "1 s"),
        (0.9994, "999 ms"),
        (1e-3, "1 ms"),
        (0.000_25, "250 µs"),
        (1e-6, "1 µs"),
        (2.5e-8, "25 ns"),
        (0.0, "0 ns"),
    ],
)
def test_a_time_in_its_unit(seconds, expected):
    assert seconds_text(seconds) == expected


def test_names_on_the_left_and_numbers_on_the_right():
    assert text("bytes", {"one": "1,000", "gradients": "20"}) == (
        "bytes\n  one        1,000\n  gradients     20"
    )
    assert text("nothing", {}) == "nothing"
    html = table("a < b", {"x": "1"})
    assert "a &lt; b" in html
    assert "<td style='text-align:left'>x</td><td style='text-align:right'>1</td>" in html


def test_the_first_bar_is_at_the_top():
    axes = bars("FLOPs", {"mm": 3.0, "bmm": 1.0}, "FLOP").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [3.0, 1.0]
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2
    bottom, top = axes.get_ylim()
    assert bottom > top
    assert (axes.get_xlabel(), axes.get_title()) == ("FLOP", "FLOPs")

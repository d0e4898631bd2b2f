"""A figure is described by title, axes and series, with no more digits than can be seen."""

import pytest
from matplotlib.figure import Figure

from helpers.plots.alt import LETTERS, describe, two_digits


def axes_of(figure, **labels):
    axes = figure.subplots()
    axes.set(**labels)
    return axes


def test_a_line_chart():
    figure = Figure()
    axes = axes_of(figure, title="loss falls", xlabel="step", ylabel="$L_{mean}$", yscale="log")
    axes.plot([0, 4, 10], [2.34567, 7.0, 1.0], label="ours")
    axes.plot([0, 10], [3.0, float("nan")], label="theirs")
    axes.axvline(3, label="_guide")
    text = describe(figure)
    assert text.startswith("loss falls. A line chart over step (")
    assert "L_mean (" in text
    assert ", logarithmic)" in text
    assert "ours, 2.3 at 0 to 1 at 10" in text
    assert "theirs, 3 at 0" in text
    assert "theirs, 3 at 0 to" not in text  # its only number
    assert "guide" not in text
    assert "2.34" not in text


def test_kinds_and_words_on_an_axis():
    figure = Figure()
    axes_of(figure).barh(["a", "b"], [1, 2])
    assert "A bar chart" in describe(figure)
    assert "(a, b)" in describe(figure)
    figure = Figure()
    axes_of(figure, title="m").imshow([[1, 2]])
    assert "m. A heat map" in describe(figure)
    figure = Figure()
    axes_of(figure).plot([1], [2], "o", label="one")
    assert "A chart of points" in describe(figure)
    assert "one, 2 at 1" in describe(figure)


def test_words_below_a_line():
    figure = Figure()
    axes_of(figure).plot(["25 MiB", "none"], [3, 4], label="a")
    assert "a, 3 at 25 MiB to 4 at none" in describe(figure)


def test_a_colour_bar_is_no_plot_and_a_drawing_has_its_words():
    figure = Figure()
    axes = axes_of(figure)
    figure.colorbar(axes.imshow([[1, 2]]), ax=axes, label="bar")
    assert "bar" not in describe(figure)
    figure = Figure()
    axes = axes_of(figure)
    axes.text(0, 0, "rank\n0")
    axes.axis("off")
    assert describe(figure) == "A drawing with the words: rank 0."


def test_the_words_of_the_function_that_drew_it_come_first():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.words, right.words = "Left.", "Right."
    assert describe(figure) == "Left. Right."


def test_many_series_are_not_all_described():
    figure = Figure()
    axes = axes_of(figure)
    for n in range(30):
        axes.plot([1, 2], [n, n], label=f"a rather long name {n}" * 3)
    text = describe(figure)
    assert len(text) <= LETTERS
    assert text.endswith("…")
    assert describe(Figure()) == "An empty figure."


def test_lines_without_names_are_counted():
    figure = Figure()
    axes = axes_of(figure)
    for _ in range(3):
        axes.plot([1, 2], [3, 4], label="_")
    assert describe(figure).endswith("It has 3 lines.")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1024, "1024"), (2.345, "2.3"), (12345.6, "12000"), (3.12e14, "3.1×10^14"),
     (0.00234, "0.0023"), (2.5e-6, "2.5×10^-6"), (-1.55, "-1.6"), (float("nan"), "nothing")],
)  # fmt: skip
def test_numbers_can_be_read_aloud(value, text):
    assert two_digits(value) == text

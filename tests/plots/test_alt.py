"""A figure is described by title, axes and series, with no more digits than can be seen."""

import pytest
from matplotlib.figure import Figure

from helpers.plots.alt import LETTERS, describe, two_digits

GAP, ENDLESS = float("nan"), float("inf")
PLAIN = {"xlim": (0, 9), "ylim": (0, 9)}
AXES = "over the x axis (0 to 9) and the y axis (0 to 9)."


def lines(*series, mark="-"):
    """Draw series: (x values, y values, label)."""

    def draw(axes):
        for x, y, label in series:
            axes.plot(x, y, mark, label=label)
        axes.set(**PLAIN)

    return draw


def a_line_chart(axes):
    lines(([0, 4, 10], [2.34567, 7.0, 1.0], "ours"), ([0, 10], [3.0, GAP], "theirs"))(axes)
    axes.axvline(3, label="_guide")
    axes.set(title="loss falls", xlabel="step", ylabel="$L_{mean}$")
    axes.set(xlim=(0, 10), ylim=(0.5, 20), yscale="log")


def backwards(axes):
    axes.plot([1, 2], [3, 4])
    axes.set(title="Falls.", ylabel="a\n\\b", xlim=(8, 0), ylim=(0.5, 20), yscale="log")


def bars(axes):
    axes.barh(["a", "b"], [1, 2])
    axes.set(xlim=(0, 2))


def two_bars(axes):
    axes.bar([0, 1], [1, 2], label="$a_{1}$")
    axes.bar([0, 1], [1, 2], label="b")
    axes.set(**PLAIN)


def with_a_colour_bar(axes):
    axes.figure.colorbar(axes.imshow([[1, 2]]), ax=axes, label="bar")
    axes.set(title="m", **PLAIN)


def drawing(axes):
    axes.text(0, 0, "rank\n0")
    axes.axis("off")


def ticks(*names):
    def draw(axes):
        axes.set(**PLAIN)
        axes.set_yticks(range(len(names)), names)

    return draw


def at_the_left(axes):
    axes.set_title("at the left", loc="left")
    axes.set(**PLAIN)


FIGURES = [
    (
        a_line_chart,
        "loss falls. A line chart over step (0 to 10) and L_mean (0.5 to 20, logarithmic). "
        "Series: ours, 2.3 at 0 to 1 at 10; theirs, 3 at 0.",
    ),
    (backwards, "Falls. A line chart over the x axis (0 to 8) and a b (0.5 to 20, logarithmic)."),
    (bars, "A bar chart over the x axis (0 to 2) and the y axis (a, b)."),
    (two_bars, f"A bar chart {AXES} Series: a_1, b."),
    (with_a_colour_bar, f"m. A heat map {AXES}"),
    (drawing, "A drawing with the words: rank 0."),
    (at_the_left, f"at the left. A chart {AXES}"),
    (lines(([1], [2], "one"), mark="o"), f"A chart of points {AXES} Series: one, 2 at 1."),
    (lambda axes: [axes.scatter([1], [2]), axes.set(**PLAIN)], f"A chart of points {AXES}"),
    (lines(*[([1, 2], [3, 4], "_")] * 3), f"A line chart {AXES} It has 3 lines."),
    (lines(*[([1, 2], [3, 4], "_")] * 2, mark="o"), f"A chart of points {AXES}"),
    (ticks("1 MB", "none"), f"A chart {AXES}"),
    (ticks("all", "none", "rank 7"), f"A chart {AXES}"),
    (
        ticks("all", "some", "none"),
        "A chart over the x axis (0 to 9) and the y axis (all, some, none).",
    ),
    (
        lines(([1, 2, 3, 4, 5], [GAP, 20, 7, 30, ENDLESS], "a")),
        f"A line chart {AXES} Series: a, 20 at 2 to 30 at 4.",
    ),
    (lines(([1, 2], [GAP, GAP], "none yet")), f"A line chart {AXES} Series: none yet."),
    (
        lines(([1 / 3, 20_000.5], [1, 2], "a")),
        f"A line chart {AXES} Series: a, 1 at 0.33 to 2 at 20000.",
    ),
]


@pytest.mark.parametrize(("draw", "text"), FIGURES)
def test_a_figure_in_words(draw, text):
    figure = Figure()
    draw(figure.subplots())
    assert describe(figure) == text


@pytest.mark.parametrize(
    ("x", "y", "end"),
    [(["25 MiB", "none"], [3, 4], "a, 3 at 25 MiB to 4 at none."), ([1, 2], ["low", "high"], "a.")],
)
def test_words_below_and_beside_a_line(x, y, end):
    figure = Figure()
    figure.subplots().plot(x, y, label="a")
    assert describe(figure).endswith(f"Series: {end}")


def test_the_words_of_the_function_that_drew_it_come_first():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.words, right.words = "Left.", "Right."
    assert describe(figure) == "Left. Right."
    figure.suptitle("Two plots.")
    assert describe(figure) == "Two plots. Left. Right."


@pytest.mark.parametrize(("count", "end"), [(8, "n7, 7 at 1."), (10, "n7, 7 at 1; and 2 more.")])
def test_eight_series_are_described(count, end):
    figure = Figure()
    lines(*(([1], [n], f"n{n}") for n in range(count)), mark="o")(figure.subplots())
    assert describe(figure).endswith(end)
    assert "Series: n0, 0 at 1; n1, 1 at 1; " in describe(figure)


def test_a_text_that_is_too_long_ends_after_a_word():
    assert describe(Figure()) == "An empty figure."
    figure = Figure()
    figure.suptitle("word " * 200)
    assert describe(figure) == "word " * 139 + "…"  # 140 would need one letter more than LETTERS
    for letters, end in ((LETTERS, "x"), (LETTERS + 1, "…")):
        figure = Figure()
        figure.suptitle("a " + "x" * (letters - 2))
        assert describe(figure)[-1] == end


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1024, "1024"), (2.345, "2.3"), (12345.6, "12000"), (3.12e14, "3.1×10^14"),
     (0.00234, "0.0023"), (2.5e-6, "2.5×10^-6"), (-1.55, "-1.6"), (GAP, "nothing"),
     (9999, "9999"), (10_000, "10000"), (-20_000, "-20000"), (123_456, "1.2×10^5"),
     (100_000, "1×10^5"), (0.0001, "0.0001"), (9.4e-5, "9.4×10^-5"), (-3.2e7, "-3.2×10^7"),
     (-ENDLESS, "nothing")],
)  # fmt: skip
def test_numbers_can_be_read_aloud(value, text):
    assert two_digits(value) == text

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
    for mark, end in (("-", "It has 2 lines."), ("o ", "(0 to 9).")):
        figure = Figure()
        axes = axes_of(figure)
        for _ in range(2):
            axes.plot([1, 2], [3, 4], mark.strip(), label="_")
        axes.set(xlim=(0, 9), ylim=(0, 9))
        assert describe(figure).endswith(end)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1024, "1024"), (2.345, "2.3"), (12345.6, "12000"), (3.12e14, "3.1×10^14"),
     (0.00234, "0.0023"), (2.5e-6, "2.5×10^-6"), (-1.55, "-1.6"), (float("nan"), "nothing")],
)  # fmt: skip
def test_numbers_can_be_read_aloud(value, text):
    assert two_digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(9999, "9999"), (10_000, "10000"), (-20_000, "-20000"), (123_456, "1.2×10^5"),
     (100_000, "1×10^5"), (0.0001, "0.0001"), (9.4e-5, "9.4×10^-5"), (-3.2e7, "-3.2×10^7"),
     (float("-inf"), "nothing")],
)  # fmt: skip
def test_a_power_is_written_where_the_zeros_are_many(value, text):
    assert two_digits(value) == text


def test_axes_without_labels_and_an_axis_from_right_to_left():
    figure = Figure()
    axes = axes_of(
        figure, title="Falls.", ylabel="a\n\\b", xlim=(8, 0), ylim=(0.5, 20), yscale="log"
    )
    axes.plot([1, 2], [3, 4])
    assert describe(figure) == (
        "Falls. A line chart over the x axis (0 to 8) and a b (0.5 to 20, logarithmic)."
    )
    figure = Figure()
    axes_of(figure, xlim=(0, 3), ylim=(0, 2)).plot([1, 2], [0, 1], "^")
    assert describe(figure).startswith("A chart of points over the x axis (0 to 3)")
    figure = Figure()
    axes_of(figure).set_title("at the left", loc="left")
    assert (
        describe(figure) == "at the left. A chart over the x axis (0 to 1) and the y axis (0 to 1)."
    )


def test_ticks_with_numbers_in_them_are_a_range():
    figure = Figure()
    axes_of(figure, xlim=(0, 1), ylim=(-0.5, 1.5)).set_yticks([0, 1], ["1 MB", "none"])
    assert "the y axis (-0.5 to 1.5)" in describe(figure)
    figure = Figure()
    axes_of(figure, ylim=(-0.5, 2.5)).set_yticks([0, 1, 2], ["all", "none", "rank 7"])
    assert "the y axis (-0.5 to 2.5)" in describe(figure)
    figure = Figure()
    axes_of(figure).set_yticks([0, 1, 2], ["all", "some", "none"])
    assert "the y axis (all, some, none)" in describe(figure)


def test_the_title_of_all_axes_comes_first():
    figure = Figure()
    figure.suptitle("Two plots.")
    for axes in figure.subplots(1, 2):
        axes.axis("off")
        axes.set_title("a part")
    assert describe(figure) == "Two plots. a part. A drawing. a part. A drawing."


@pytest.mark.parametrize(("count", "end"), [(8, "n7, 7 at 1."), (10, "n7, 7 at 1; and 2 more.")])
def test_eight_series_are_described(count, end):
    figure = Figure()
    axes = axes_of(figure)
    for n in range(count):
        axes.plot([1], [n], "o", label=f"n{n}")
    assert describe(figure).endswith(end)
    assert "Series: n0, 0 at 1; n1, 1 at 1; " in describe(figure)


def test_a_text_that_is_too_long_ends_after_a_word():
    figure = Figure()
    figure.suptitle("word " * 200)
    assert describe(figure) == "word " * 139 + "…"  # 140 would need one letter more than LETTERS
    for letters, end in ((LETTERS, "x"), (LETTERS + 1, "…")):
        figure = Figure()
        figure.suptitle("a " + "x" * (letters - 2))
        assert describe(figure)[-1] == end


def test_series_that_are_no_lines_are_named():
    figure = Figure()
    axes = axes_of(figure)
    axes.bar([0, 1], [1, 2], label="$a_{1}$")
    axes.bar([0, 1], [1, 2], label="b")
    assert describe(figure).endswith("Series: a_1, b.")
    figure = Figure()
    axes_of(figure).scatter([1], [2])
    assert describe(figure).startswith("A chart of points over")


def test_a_series_begins_and_ends_with_a_number():
    figure = Figure()
    gap, endless = float("nan"), float("inf")
    axes_of(figure).plot([1, 2, 3, 4, 5], [gap, 20, 7, 30, endless], label="a")
    assert describe(figure).endswith("Series: a, 20 at 2 to 30 at 4.")
    figure = Figure()
    axes_of(figure).plot([1, 2], [gap, gap], label="nothing yet")
    assert describe(figure).endswith("Series: nothing yet.")
    figure = Figure()
    axes_of(figure).plot([1 / 3, 20_000.5], [1, 2], label="a")
    assert describe(figure).endswith("Series: a, 1 at 0.33 to 2 at 20000.")
    figure = Figure()
    axes_of(figure).plot([1, 2], ["low", "high"], label="words")
    assert describe(figure).endswith("Series: words.")

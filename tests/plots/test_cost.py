"""Times of collectives: each call has a line, full dots, and hollow ones where there are any."""

from helpers.plots.cost import costs
from helpers.plots.style import PAPER

LINE = {"all_reduce, 2 ranks": [(1.0, 2.0), (10.0, 3.0)], "barrier, 4 ranks": [(1.0, 5.0)]}
FITTED = {"all_reduce, 2 ranks": [(1.0, 2.1)]}


def drawn(others):
    axes = costs(LINE, FITTED, others).axes[0]
    lines = [line for line in axes.lines if line.get_marker() != "o"]
    dots = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    return lines, dots, [text.get_text() for text in axes.get_legend().get_texts()]


def test_lines_and_dots_of_one_colour():
    lines, dots, legend = drawn({"barrier, 4 ranks": [(1.0, 6.0)]})
    assert [list(line.get_ydata()) for line in lines] == [[2.0, 3.0], [5.0]]
    assert [list(dot.get_ydata()) for dot in dots] == [[2.1], [6.0]]
    assert [dot.get_color() for dot in dots] == [line.get_color() for line in lines]
    assert [dot.get_markerfacecolor() for dot in dots] == [lines[0].get_color(), PAPER]
    assert legend == [*LINE, "measured, fitted", "measured, not fitted"]


def test_axes_and_dots_that_explain_full_and_hollow():
    (axes,) = costs(LINE, FITTED, {"barrier, 4 ranks": [(1.0, 6.0)]}).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("payload (bytes)", "seconds")
    full, hollow = [line for line in axes.lines if not len(line.get_xdata())]
    assert full.get_markerfacecolor() == full.get_color() == hollow.get_color()
    assert hollow.get_markerfacecolor() == PAPER
    assert {dot.get_linestyle() for dot in axes.lines if dot.get_marker() == "o"} == {"None"}
    assert len({line.get_color() for line in axes.lines}) == 3  # two calls and the explanation


def test_a_call_may_have_full_and_hollow_dots_in_the_order_of_the_calls():
    names = ["b, 2 ranks", "a, 2 ranks"]
    axes = costs({name: [(1, 2), (9, 3)] for name in names}, {names[1]: [(1, 4)]},
                 {names[1]: [(1, 5)]}).axes[0]  # fmt: skip
    assert [text.get_text() for text in axes.get_legend().get_texts()][:2] == names
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    full, hollow = (dot for dot in dots if len(dot.get_xdata()))
    assert [list(full.get_ydata()), list(hollow.get_ydata())] == [[4], [5]]
    assert (full.get_markerfacecolor(), hollow.get_markerfacecolor()) == (full.get_color(), PAPER)


def test_no_word_of_hollow_dots_where_there_are_none():
    assert drawn({})[2] == [*LINE, "measured, fitted"]

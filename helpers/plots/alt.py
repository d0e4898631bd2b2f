"""Describe a figure in words, for readers who do not see it.

Jupyter's convention is the key `alt` in the output's metadata of "image/png".
"""

import math

SERIES = 8  # no more are described one by one
LETTERS = 700


def describe(figure) -> str:
    """A text of what a Matplotlib figure shows: title, axes and their ranges, series.

    It says no more than the picture does: numbers have two digits.
    """
    parts = [figure.get_suptitle(), *(describe_axes(axes) for axes in plots_of(figure))]
    text = " ".join(filter(None, parts)) or "An empty figure."
    return text if len(text) <= LETTERS else text[: LETTERS - 1].rsplit(" ", 1)[0] + " …"


def plots_of(figure):
    """The axes of a figure, without colour bars."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def describe_axes(axes) -> str:
    if written := getattr(axes, "words", ""):  # by the function that drew it, or by its caller
        return written
    title = plain(axes.get_title() or axes.get_title("left"))
    title = f"{title.rstrip('.')}. " if title else ""
    if not axes.axison:
        words = ", ".join(plain(text.get_text()) for text in axes.texts if text.get_text())
        return f"{title}A drawing{f' with the words: {words}' if words else ''}."
    sides = " and ".join(filter(None, (side(axes, "x"), side(axes, "y"))))
    names = [line for line in axes.lines if shown(line)]
    found = f"{title}{kind(axes)}{f' over {sides}' if sides else ''}."
    if names:
        series = "; ".join(one_line(line) for line in names[:SERIES])
        more = f"; and {len(names) - SERIES} more" if len(names) > SERIES else ""
        found += f" Series: {series}{more}."
    elif len(axes.lines) > 1 and kind(axes) == "A line chart":
        found += f" It has {len(axes.lines)} lines."
    elif labels := [plain(label) for label in axes.get_legend_handles_labels()[1]]:
        found += f" Series: {', '.join(labels)}."
    return found


def kind(axes) -> str:
    if axes.images:
        return "A heat map"
    if axes.containers:
        return "A bar chart"
    if any(line.get_linestyle() not in ("None", "none", "", " ") for line in axes.lines):
        return "A line chart"
    return "A chart of points" if axes.lines or axes.collections else "A chart"


def side(axes, name: str) -> str:
    """An axis: its label, whether it is logarithmic, its range or the names on it."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    label = plain(axis.get_label_text()) or f"the {name} axis"
    words = [plain(text.get_text()) for text in axis.get_ticklabels() if text.get_text()]
    if words and not any(any(c.isdigit() for c in word) for word in words):
        return f"{label} ({', '.join(words)})"
    low, high = sorted(axis.get_view_interval())
    scale = ", logarithmic" if axis.get_scale() == "log" else ""
    return f"{label} ({two_digits(low)} to {two_digits(high)}{scale})"


def shown(line) -> bool:
    """Is it a series with a name, rather than a guide?"""
    return not str(line.get_label()).startswith("_") and len(line.get_xdata()) > 0


def one_line(line) -> str:
    x, y = line.get_xdata(), line.get_ydata()
    name = plain(line.get_label())
    pairs = [(a, b) for a, b in zip(x, y, strict=False) if finite(b)]
    if not pairs:
        return name
    (a, b), (c, d) = pairs[0], pairs[-1]
    if len(pairs) == 1:
        return f"{name}, {two_digits(b)} at {place(a)}"
    return f"{name}, {two_digits(b)} at {place(a)} to {two_digits(d)} at {place(c)}"


def place(x) -> str:
    """A number on the horizontal axis, or a word, where the axis has words."""
    return x if isinstance(x, str) else two_digits(x) if finite(x) else str(x)


def finite(value) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def headed(title: str, words: str) -> str:
    """The words after the picture's title, if it has one."""
    return f"{title}. {words}" if title else words


def two_digits(value) -> str:
    """A number as it can be read from a picture, in a form that can be read aloud."""
    value = float(value)
    if not math.isfinite(value):
        return "nothing"
    if value == int(value) and abs(value) < 10_000:
        return str(int(value))
    text = f"{value:.2g}"
    if "e" in text and 1e-4 <= abs(value) < 1e5:
        text = f"{float(text):g}"
    digits, _, power = text.partition("e")
    return f"{digits}×10^{int(power)}" if power else digits


def plain(text: str) -> str:
    """Without TeX's marks and line breaks."""
    for mark in ("$", "{", "}", "\\"):
        text = text.replace(mark, "")
    return " ".join(text.split())

"""Curves: one or several series over a common axis, in one call."""

from collections.abc import Mapping, Sequence

from helpers.plots.labels import label_points, note
from helpers.plots.panel import canvas
from helpers.plots.series import named_series
from helpers.plots.style import GREY, HEIGHT, WIDTH, colors_of, course_style, look


def curves(
    data,
    *,
    x=None,
    y: str | None = None,
    by: str | None = None,
    log: str = "",
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    xlim=None,
    ylim=None,
    xticks: Sequence | None = None,
    yticks: Sequence | None = None,
    styles: Mapping[str, dict] | None = None,
    nested: bool = False,
    vlines: Mapping[str, float] | None = None,
    hlines: Mapping[str, float] | None = None,
    points: Mapping[str, tuple[float, float]] | None = None,
    key: str = "auto",
    on=None,
    width: float = WIDTH,
    height: float = HEIGHT,
    alt: str = "",
):
    """Draw one curve for each series, with a key.

    The name of a series chooses its look: "rank 1" has the colour of rank 1, "measured" means
    points on a line, "formula" a dashed line, "published" hollow diamonds, "simulated" squares on
    a dotted line. See `helpers/plots/style.py`.

    Args:
        data, x, y, by: what to draw; see `helpers.plots.series.named_series`.
        log: the logarithmic axes: "", "x", "y" or "xy".
        xticks, yticks: the only ticks, labelled with these numbers or strings; a mapping gives
            each number its label.
        styles: name -> Matplotlib's keywords for this series, before those of its name.
        nested: make each curve thinner than the one before, so that equal curves stay visible.
        vlines, hlines: label -> a place on the axis: a dashed guide with its label.
        points: label -> (x, y): single points with their labels beside them.
        key: "auto"; "inside", "right", "above" for a legend there; "" for none.
        on: the axes of another picture to draw on, of `panels` for example.
        alt: the alternative text; by default a description.

    Raises:
        ValueError: there is nothing to draw; see `named_series`.
    """
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    series = named_series(data, x, y, by)
    with course_style():
        axes, picture = canvas(on, width=width, height=height)
        colors, styles, count = colors_of(series), styles or {}, len(series)
        step = min(1.9, 4.6 / max(count - 1, 1))  # points; the widest has 5.8 at most
        widths = [1.2 + step * (count - 1 - number) for number in range(count)]
        for number, (name, (xs, ys)) in enumerate(series.items()):
            chosen = {"color": colors[name], **look(name, len(xs))}
            if nested:
                chosen |= {"linewidth": widths[number], "marker": ""}
            own = normalize_kwargs(styles.get(name, {}), Line2D)  # "lw" becomes "linewidth"
            axes.plot(xs, ys, **{**chosen, "label": name if name and key else "_", **own})
        axes.set_xscale("log" if "x" in log else "linear")
        axes.set_yscale("log" if "y" in log else "linear")
        axes.set(xlabel=xlabel or text(x) or text(index_name(data)), ylabel=ylabel or y or "")
        axes.set(title=title or axes.get_title())
        ticks(axes.set_xticks, xticks, axes.xaxis)
        ticks(axes.set_yticks, yticks, axes.yaxis)
        limits = {"xlim": xlim, "ylim": ylim}
        axes.set(**{name: limit for name, limit in limits.items() if limit is not None})
        guides(axes, vlines or {}, hlines or {})
        if points:
            label_points(axes, points)
        draw_key(axes, [name for name in series if name], key)
    axes.words = alt or getattr(axes, "words", "")
    return picture


def text(value) -> str:
    return value if isinstance(value, str) else ""


def index_name(data):
    return getattr(getattr(data, "index", None), "name", None)


def ticks(place, chosen, axis):
    """Only the chosen ticks, written as they are: a log axis would write 10^1 and its like."""
    if chosen is None:
        return
    labels = chosen.values() if isinstance(chosen, Mapping) else map(number_text, chosen)
    place(list(chosen), list(labels))
    place([], minor=True)


def number_text(value) -> str:
    return f"{value:,g}" if abs(value) < 1e6 else f"{value:g}"


def guides(axes, vlines, hlines):
    """Dashed lines across the plot, each with its label."""
    line = {"color": GREY, "lw": 1, "ls": "--", "zorder": 1}
    for label, place in vlines.items():
        axes.axvline(place, **line)
        across = {"of": ("data", "axes fraction"), "va": "top", "zorder": 5}
        note(axes, label, (place, 1), (3, -1), **across)
    for label, place in hlines.items():
        axes.axhline(place, **line)
        up = {"of": ("axes fraction", "data"), "ha": "right", "va": "bottom", "zorder": 5}
        note(axes, label, (1, place), (-2, 1), **up)


def draw_key(axes, names, key):
    """Say which curve is which. Up to three names fit inside, more go to the right."""
    if key == "auto":
        key = "" if not names else "inside" if len(names) <= 3 else "right"
    if key:
        beside = {
            "inside": {"loc": "best"},
            "right": {"loc": "upper left", "bbox_to_anchor": (1, 1)},
            "above": {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 4},
        }
        axes.legend(**beside[key])
        if key == "above" and axes.get_title():
            axes.set_title(axes.get_title(), pad=28)  # points: above the key

"""Curves: one or several series over a common axis, in one call; frames, mappings, sequences."""

from collections.abc import Mapping, Sequence

from helpers.plots.labels import label_points, note
from helpers.plots.picture import canvas
from helpers.plots.style import GREY, colors_of, course_style, look


def curves(
    data,
    *,
    x=None,
    y: str | None = None,
    by: str | None = None,
    log: str = "",
    xticks: Sequence | None = None,
    yticks: Sequence | None = None,
    styles: Mapping[str, dict] | None = None,
    nested: bool = False,
    vlines: Mapping[str, float] | None = None,
    hlines: Mapping[str, float] | None = None,
    points: Mapping[str, tuple[float, float]] | None = None,
    key: str = "auto",
    **frame,
):
    """Draw one curve for each series, with a key.

    The name of a series chooses its look: "rank 1" has the colour of rank 1, "measured" means
    points on a line, "formula" a dashed line, "published" hollow diamonds, "simulated" squares on
    a dotted line. See `helpers/plots/style.py`.

    Args:
        data, x, y, by: what to draw; see `named_series`.
        log: the logarithmic axes: "", "x", "y" or "xy".
        xticks, yticks: the only ticks, labelled with these numbers or strings; a mapping gives
            each number its label.
        styles: name -> Matplotlib's keywords for this series, before those of its name.
        nested: make each curve thinner than the one before, so that equal curves stay visible.
        vlines, hlines: label -> a place on the axis: a dashed guide with its label.
        points: label -> (x, y): single points with their labels beside them.
        key: "auto"; "inside", "right", "above" for a legend there; "" for none.
        frame: title, xlabel, ylabel, xlim, ylim, on, width, height, alt: as
            `helpers.plots.picture.canvas` has them. Columns of a frame name the axes by default.

    Raises:
        ValueError: there is nothing to draw; see `named_series`.
    """
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    series = named_series(data, x, y, by)
    index = getattr(getattr(data, "index", None), "name", None)
    across = next((name for name in (x, index) if isinstance(name, str)), "")
    names = {"xlabel": frame.get("xlabel") or across, "ylabel": frame.get("ylabel") or y or ""}
    with canvas(**frame | names) as axes:
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
        ticks(axes.set_xticks, xticks)
        ticks(axes.set_yticks, yticks)
        guides(axes, vlines, hlines)
    with course_style():  # the limits are known now
        if points:
            label_points(axes, points)
        draw_key(axes, [name for name in series if name], key)
    return axes.figure


def ticks(place, chosen):
    """Only the chosen ticks, written as they are: a log axis would write 10^1 and its like."""
    if chosen is None:
        return
    labels = chosen.values() if isinstance(chosen, Mapping) else map(number_text, chosen)
    place(list(chosen), list(labels))
    place([], minor=True)


def number_text(value) -> str:
    return f"{value:,g}" if abs(value) < 1e6 else f"{value:g}"


def guides(axes, vlines=None, hlines=None):
    """Dashed lines across the plot, each with its label."""
    line = {"color": GREY, "lw": 1, "ls": "--", "zorder": 1}
    for label, place in (vlines or {}).items():
        axes.axvline(place, **line)
        across = {"of": ("data", "axes fraction"), "va": "top", "zorder": 5}
        note(axes, label, (place, 1), (3, -1), **across)
    for label, place in (hlines or {}).items():
        axes.axhline(place, **line)
        up = {"of": ("axes fraction", "data"), "ha": "right", "va": "bottom", "zorder": 5}
        note(axes, label, (1, place), (-2, 1), **up)


def draw_key(axes, names, key):
    """Say which curve is which. Up to three names fit inside, more go to the right.

    Of more names than a figure of this height has room for, there are every second, third, ….
    """
    if key == "auto":
        key = "" if not names else "inside" if len(names) <= 3 else "right"
    if key:
        beside = {
            "inside": {"loc": "best"},
            "right": {"loc": "upper left", "bbox_to_anchor": (1, 1)},
            "above": {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 4},
        }
        handles, labels = axes.get_legend_handles_labels()
        room = int(5 * axes.figure.get_figheight() - 3)  # five lines to the inch
        each = 1 if key == "above" else max(1, -(-len(labels) // max(room, 1)))
        axes.legend(handles[::each], labels[::each], **beside[key])
        if key == "above" and axes.get_title():
            axes.set_title(axes.get_title(), pad=28)  # points: above the key


def named_series(data, x=None, y=None, by=None) -> dict[str, tuple[list, list]]:
    """The series in `data`, as name -> (x values, y values).

    Args:
        data: a DataFrame; a pandas Series; a sequence of y; or a mapping of names to a pandas
            Series, a sequence of y, a pair (x values, y values), a DataFrame, or a function of x.
        x: of a DataFrame, the column of x values; by default its index. Otherwise the x values
            themselves, for sequences of y and for functions.
        y: of a DataFrame, the column of y values; by default every column is a series.
        by: of a DataFrame, the column whose values tell the series apart: "rank" gives the series
            "rank 0", "rank 1", …

    Raises:
        ValueError: there is nothing to draw, x and y differ in length, or a function comes
            without x.
    """
    found = {}
    for name, values in (data if isinstance(data, Mapping) else {"": data}).items():
        if hasattr(values, "columns"):
            frame = from_frame(values, x, y, by).items()
            found |= {f"{name} {column}".strip(): series for column, series in frame}
        else:
            found[str(name)] = pair(str(name), values, x)
    if not found:
        raise ValueError("no series to draw")
    for name, (xs, ys) in found.items():
        if len(xs) != len(ys):
            raise ValueError(f"series {name!r} has {len(xs)} x values and {len(ys)} y values")
    return found


def from_frame(frame, x, y, by):
    def columns(frame, y):
        return list(frame.index if x is None else frame[x]), list(frame[y])

    if by is not None:
        return {f"{by} {key}": columns(group, y) for key, group in frame.groupby(by, sort=True)}
    if y is not None:
        return {"": columns(frame, y)}
    return {str(name): columns(frame, name) for name in frame.columns if name != x}


def pair(name, values, x):
    """One series as (x values, y values)."""
    if callable(values):
        if x is None:
            raise ValueError(f"series {name!r} is a function: give the x at which to draw it")
        return list(x), [values(each) for each in x]
    if isinstance(values, tuple) and len(values) == 2 and hasattr(values[0], "__len__"):
        return list(values[0]), list(values[1])
    if hasattr(values, "index") and hasattr(values, "to_numpy"):
        return list(values.index), list(values)
    values = list(values)
    return list(range(len(values)) if x is None else x), values

"""Values as rows or columns: bars that start at zero, dots with intervals, a histogram."""

from collections.abc import Mapping

from helpers.plots.alt import two_digits
from helpers.plots.curve import draw_key, guides
from helpers.plots.labels import name_rows, note
from helpers.plots.picture import canvas
from helpers.plots.style import FAINT, GREY, SERIES_COLORS, colors_of, meaning

ROW = 0.36  # inches


def bars(
    values: Mapping,
    *,
    log: bool = False,
    stacked: bool = False,
    vlines: Mapping[str, float] | None = None,
    numbers: str = "",
    **frame,
):
    """Draw one horizontal bar for each name, or one group of bars.

    Args:
        values: name -> value; or name -> {series: value}, for one bar of each series and a key.
        log: a logarithmic axis, with points in place of bars: such an axis has no zero, so a
            bar's length would mean nothing.
        stacked: put the series of a group end to end in one bar, in their order.
        vlines: label -> value: a dashed guide with its label.
        numbers: a format such as "{:.0f} GB" writes each value beside its bar, or each sum
            beside its stacked bar.
        frame: title, xlabel, xlim, on, width, height, alt, as `helpers.plots.picture.canvas`.

    Raises:
        ValueError: there is nothing to draw; a value on a logarithmic axis is not positive; a
            logarithmic axis with stacked bars.
    """
    grouped = {n: v if isinstance(v, Mapping) else {"": v} for n, v in values.items()}
    series = list(dict.fromkeys(name for group in grouped.values() for name in group))
    if not series:
        raise ValueError("no values to draw")
    if log and any(v <= 0 for group in grouped.values() for v in group.values()):
        raise ValueError("a logarithmic axis shows positive values only")
    if log and stacked:
        raise ValueError("the parts of a stacked bar have no length on a logarithmic axis")
    rows = len(grouped) * (1 if stacked else len(series))
    size = {"height": 0.9 + ROW * max(rows, 2) + 0.3 * bool(frame.get("title"))}
    with canvas(words(grouped, frame.get("xlabel"), log), **size | frame) as axes:
        colors = colors_of(series) if len(series) > 1 else {}
        step = 0.8 if stacked else 0.8 / len(series)
        ends = [0.0] * len(grouped)  # of the parts so far
        for number, name in enumerate(series):
            own = [row for row, group in enumerate(grouped.values()) if name in group]
            places = [row if stacked else row - 0.4 + step * (number + 0.5) for row in own]
            groups = [list(grouped)[row] for row in own]
            lengths = [grouped[group][name] for group in groups]
            look = {"color": [colors.get(name) or row_color(group) for group in groups]}
            look["label"] = name or "_"
            if log:
                axes.set_xscale("log")
                axes.scatter(lengths, places, s=46, zorder=3, **look)
            else:
                axes.barh(places, lengths, 0.88 * step, [ends[row] for row in own], **look)
            if stacked:
                for row, value in zip(own, lengths, strict=True):
                    ends[row] += value
            elif numbers:
                write(axes, numbers, lengths, places)
        if stacked and numbers:
            write(axes, numbers, ends, range(len(grouped)))
        name_rows(axes, list(grouped))
        axes.set(ylim=(len(grouped) - 0.5, -0.5 - 0.55 * bool(vlines)))
        if log:
            axes.grid(axis="y", color=FAINT)
        axes.margins(x=0.14 if numbers else 0.06)
        guides(axes, vlines)
        draw_key(axes, [], "right" if len(series) > 1 else "")
    return axes.figure


def write(axes, numbers: str, values, places):
    """Each value beside the end of its bar."""
    for value, place in zip(values, places, strict=True):
        note(axes, numbers.format(value), (value, place))


def row_color(name) -> str:
    return meaning(str(name)) or SERIES_COLORS[0]


def words(grouped, xlabel, log) -> str:
    """What is drawn, in words."""
    rows = "; ".join(
        f"{name} " + ", ".join(f"{series} {two_digits(v)}".strip() for series, v in group.items())
        for name, group in grouped.items()
    )
    axis = f" of {xlabel}{', logarithmic' if log else ''}" if xlabel else ""
    return f"{'Points' if log else 'Bars'}{axis}: {rows}."


def intervals(
    rows: Mapping[str, tuple[float, float, float]],
    *,
    vlines: Mapping[str, float] | None = None,
    **frame,
):
    """Draw each value as a dot on the line of its interval.

    Args:
        rows: name -> (low, value, high).
        vlines: label -> value: a dashed guide with its label, a published value for example.
        frame: as for `bars`.

    Raises:
        ValueError: there is nothing to draw, or a value lies outside its interval.
    """
    if not rows:
        raise ValueError("no rows to draw")
    for name, (low, value, high) in rows.items():
        if not low <= value <= high:
            raise ValueError(f"{name!r}: {value} lies outside its interval, {low} to {high}")
    said = (
        f"{n}: {two_digits(v)}, {two_digits(a)} to {two_digits(b)}" for n, (a, v, b) in rows.items()
    )
    of = f", {frame['xlabel']}" if frame.get("xlabel") else ""
    size = {"height": 1.0 + 0.34 * len(rows)}
    with canvas(f"Values with intervals{of}. {'; '.join(said)}.", **size | frame) as axes:
        for place, (name, (low, value, high)) in enumerate(rows.items()):
            color = row_color(name)
            axes.plot([low, high], [place, place], color=color, lw=2.5, alpha=0.5, label="_")
            axes.plot([value], [place], "o", color=color, ms=6, label="_")
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set(ylim=(len(rows) - 0.5, -0.5 - 0.7 * bool(vlines)))
        axes.tick_params(axis="y", length=0)
        guides(axes, vlines)
    return axes.figure


def histogram(
    counts: Mapping[str, Mapping[int, int]],
    *,
    ranges: Mapping[str, tuple[int, int, int]] | None = None,
    **frame,
):
    """Draw how many numbers have each exponent, as a share of all numbers of the series.

    Args:
        counts: name -> {exponent: numbers}.
        ranges: format -> its exponents: of the smallest subnormal number, of the smallest normal
            number, of the largest number. Each format is a bar above the histogram, light where
            its numbers are subnormal.
        frame: as for `bars`; by default xlim is around the numbers.

    Raises:
        ValueError: there are no numbers.
    """
    totals = {name: sum(group.values()) for name, group in counts.items()}
    if not any(totals.values()):
        raise ValueError("no numbers to draw")
    ranges = ranges or {}
    frame = {
        "xlabel": "exponent: the number is at least 2 to this power",
        "ylabel": "share of the numbers, %",
        "height": 2.8 + 0.28 * len(ranges),
    } | frame
    with canvas(exponents_in_words(counts, totals, ranges), **frame) as axes:
        colors, step = colors_of(counts), 0.9 / len(counts)
        top = 0.0
        for number, (name, group) in enumerate(counts.items()):
            shares = {e: 100 * n / totals[name] for e, n in sorted(group.items())}
            top = max(top, *shares.values(), 0) if shares else top
            places = [e + 0.05 + step * (number + 0.5) for e in shares]
            axes.bar(places, list(shares.values()), 0.94 * step, color=colors[name], label=name)
        row = 0.11 * top
        for number, (name, (least, normal, most)) in enumerate(ranges.items()):
            height_of = top + row * (number + 0.7)
            axes.barh(height_of, normal - least, 0.5 * row, left=least, color=FAINT)
            axes.barh(height_of, most + 1 - normal, 0.5 * row, left=normal, color=GREY)
            note(axes, name, (1.01, height_of), (0, 0), of=("axes fraction", "data"))
        seen = [e for group in counts.values() for e in group]
        axes.set(xlim=(min(seen) - 2, max(seen) + 3), ylim=(0, 1.08 * top + row * len(ranges)))
        if len(counts) > 1:
            axes.legend()
    return axes.figure


def exponents_in_words(counts, totals, ranges) -> str:
    """What is drawn, in words."""
    rows = []
    for name, group in counts.items():
        if group:
            most = max(group, key=group.get)
            rows.append(
                f"{name}: exponents {min(group)} to {max(group)}, most numbers at {most} "
                f"({100 * group[most] / totals[name]:.0f} %)"
            )
    spans = [f"{name} from {least} to {most}" for name, (least, _, most) in ranges.items()]
    ending = f" Formats: {'; '.join(spans)}." if spans else ""
    return f"Histogram of exponents. {'; '.join(rows)}.{ending}"

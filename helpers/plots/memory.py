"""The bytes of a rank as bars, one colour for each kind; and the largest model that fits."""

from collections.abc import Mapping

from helpers.plots.alt import two_digits
from helpers.plots.curve import curves, guides
from helpers.plots.labels import color_key, name_rows, note
from helpers.plots.picture import canvas
from helpers.plots.style import MEMORY_COLORS, PAPER, SERIES_COLORS, shades

ROW = 0.42  # inches
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
DECADES = {1e8: "100M", 1e9: "1B", 1e10: "10B", 1e11: "100B", 1e12: "1T", 1e13: "10T", 1e14: "100T"}


def memory_bars(
    rows: Mapping[str, Mapping[str, float]],
    *,
    vlines: Mapping[str, float] | None = None,
    **frame,
):
    """Draw one bar for each row, with one part for each kind, and its total beside it.

    Args:
        rows: name -> {kind: bytes}, with the kinds of `style.MEMORY_COLORS`, or others.
        vlines: label -> bytes: a dashed guide, for example the memory of a GPU.
        frame: title, on, width, height, alt, as `helpers.plots.picture.canvas` has them.

    Returns:
        The Picture. Its axis counts in the unit that suits the longest bar; kB is 1,000 bytes.

    Raises:
        ValueError: there is nothing to draw, or a number of bytes is negative.
    """
    from matplotlib.patheffects import withStroke

    if not rows or not any(rows.values()):
        raise ValueError("no bytes to draw")
    if not all(nbytes >= 0 for kinds in rows.values() for nbytes in kinds.values()):
        raise ValueError("a number of bytes is 0 or more")
    colors = kind_colors(kind for kinds in rows.values() for kind in kinds)
    totals = {name: sum(kinds.values()) for name, kinds in rows.items()}
    scale, unit = unit_of(max([*totals.values(), *(vlines or {}).values()]))
    size = {"height": 0.95 + ROW * max(len(rows), 2), "xlabel": unit}
    lines = {label: nbytes / scale for label, nbytes in (vlines or {}).items()}
    with canvas(words(rows, totals), **size | frame) as axes:
        numbers = []
        for place, (name, kinds) in enumerate(rows.items()):
            start = 0.0
            for kind in filter(kinds.get, colors):  # in the order of the key
                axes.barh(place, kinds[kind] / scale, 0.7, start, color=colors[kind], lw=0)
                start += kinds[kind] / scale
            clear = [withStroke(linewidth=2.5, foreground=PAPER)]  # from a guide behind it
            text = bytes_text(totals[name])
            numbers.append(note(axes, text, (start, place), path_effects=clear))
        name_rows(axes, list(rows))
        axes.set(ylim=(len(rows) - 0.5, -0.5 - 0.45 * bool(lines)))
        axes.margins(x=0.3)  # for the longest bar's number
        axes.xaxis.get_major_locator().set_params(integer=unit == "bytes")
        guides(axes, lines)
        kind_key(axes, colors)
        if lines:
            axes.figure.draw_without_rendering()  # fixes the layout, so that widths are known
        for line in sorted(lines.values()):
            across, _ = axes.transData.transform((line, 0))
            for number in numbers:
                box = number.get_window_extent()
                if box.x0 <= across <= box.x1:  # to the right of the line
                    number.xy = line, number.xy[1]
    return axes.figure


def kind_colors(kinds) -> dict[str, str]:
    """Kind -> colour, in the order of `MEMORY_COLORS`; other kinds come last."""
    found = set(kinds)
    known = {kind: color for kind, color in MEMORY_COLORS.items() if kind in found}
    others = sorted(found - set(known))
    return known | {k: SERIES_COLORS[i % len(SERIES_COLORS)] for i, k in enumerate(others)}


def kind_key(axes, colors: Mapping[str, str], *more):
    """Say which colour is which kind, to the right of the plot; `more` are Matplotlib's handles."""
    color_key(axes, colors, *more, loc="upper left", bbox_to_anchor=(1, 1), handlelength=1.2)


def unit_of(nbytes: float) -> tuple[float, str]:
    """(bytes of the unit, its name): the largest unit of which there is at least one, rounded."""
    return next(((size, name) for size, name in UNITS if nbytes >= 0.9995 * size), UNITS[-1])


def bytes_text(nbytes: float) -> str:
    """A number of bytes in three digits: "31.4 GB"."""
    scale, unit = unit_of(nbytes)
    return f"{nbytes / scale:{'.3g' if nbytes < 999.5e12 else ',.0f'}} {unit}"


def words(rows, totals) -> str:
    """What is drawn, in words."""
    said = []
    for name, kinds in rows.items():
        scale, _ = unit_of(totals[name])
        parts = ", ".join(f"{kind} {two_digits(b / scale)}" for kind, b in kinds.items())
        said.append(f"{name}, {bytes_text(totals[name])}{f': {parts}' if parts else ''}")
    return f"Bars of bytes by kind. {'; '.join(said)}."


def what_fits(
    sizes: Mapping[str, Mapping[int, float]],
    *,
    models: Mapping[str, float] | None = None,
    **frame,
):
    """Draw the largest number of parameters over the ranks, both axes logarithmic.

    Args:
        sizes: name -> {ranks: parameters}, as `helpers.plans.zero_memory.largest_models` returns.
        models: name -> parameters: dashed guides, such as {"GPT-3": 175e9}.
        frame: as for `memory_bars`.

    Raises:
        ValueError: there is nothing to draw, or a size of 0 has no place on a logarithmic axis.
    """
    found = [size for row in sizes.values() for size in row.values()]
    if not found or min(found) <= 0:
        raise ValueError("what_fits draws positive numbers of parameters")
    shown = [*found, *(models or {}).values()]
    low, high = min(shown) / 2, max(shown) * 2
    colors = shades(len(sizes))  # the names are in order: each shards more than the one before
    labels = {"xlabel": "ranks", "ylabel": "largest model, parameters", "height": 3.2}
    return curves(
        {name: (list(row), list(row.values())) for name, row in sizes.items()},
        log="xy",
        xticks=sorted({n for row in sizes.values() for n in row}),
        yticks={size: label for size, label in DECADES.items() if low <= size <= high},
        styles={name: {"color": color} for name, color in zip(sizes, colors, strict=True)},
        hlines=models,
        key="right",
        **labels | {"ylim": (low, high)} | frame,
    )

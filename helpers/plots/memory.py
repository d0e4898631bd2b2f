"""The bytes of a rank as bars, one colour for each kind."""

from collections.abc import Mapping

from helpers.plots.alt import headed, two_digits
from helpers.plots.curve import guides
from helpers.plots.labels import color_key, name_rows, note
from helpers.plots.panel import canvas
from helpers.plots.style import MEMORY_COLORS, PAPER, SERIES_COLORS, WIDTH, course_style

ROW = 0.42  # inches
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))


def memory_bars(
    rows: Mapping[str, Mapping[str, float]],
    *,
    title: str = "",
    vlines: Mapping[str, float] | None = None,
    on=None,
    width: float = WIDTH,
    height: float = 0,
    alt: str = "",
):
    """Draw one bar for each row, with one part for each kind, and its total beside it.

    Args:
        rows: name -> {kind: bytes}, with the kinds of `style.MEMORY_COLORS`, or others.
        vlines: label -> bytes: a dashed guide, for example the memory of a GPU.
        on: the axes of another picture to draw on, of `panels` for example.
        alt: the alternative text; by default a description.

    Returns:
        The Picture. Its axis counts in the unit that suits the longest bar; kB is 1,000 bytes.

    Raises:
        ValueError: there is nothing to draw, or a number of bytes is negative.
    """
    from matplotlib.patheffects import withStroke

    if not rows or not any(rows.values()):
        raise ValueError("no bytes to draw")
    if any(nbytes < 0 for kinds in rows.values() for nbytes in kinds.values()):
        raise ValueError("a number of bytes is 0 or more")
    colors = kind_colors(kind for kinds in rows.values() for kind in kinds)
    totals = {name: sum(kinds.values()) for name, kinds in rows.items()}
    scale, unit = unit_of(max([*totals.values(), *(vlines or {}).values()]))
    with course_style():
        axes, picture = canvas(on, width=width, height=height or 0.95 + ROW * max(len(rows), 2))
        for place, (name, kinds) in enumerate(rows.items()):
            start = 0.0
            for kind, nbytes in kinds.items():
                axes.barh(place, nbytes / scale, 0.7, start, color=colors[kind], lw=0)
                start += nbytes / scale
            clear = [withStroke(linewidth=2.5, foreground=PAPER)]  # from a guide behind it
            note(axes, bytes_text(totals[name]), (start, place), path_effects=clear)
        name_rows(axes, list(rows))
        axes.set(ylim=(len(rows) - 0.5, -0.5 - 0.45 * bool(vlines)), xlabel=unit, title=title)
        axes.margins(x=0.2)
        guides(axes, {label: place / scale for label, place in (vlines or {}).items()}, {})
        kind_key(axes, colors)
    axes.words = alt or words(rows, totals, title)
    return picture


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
    """(bytes of the unit, its name): the largest unit of which there is at least one."""
    return next(((size, name) for size, name in UNITS if nbytes >= size), UNITS[-1])


def bytes_text(nbytes: float) -> str:
    """A number of bytes in three digits: "31.4 GB"."""
    scale, unit = unit_of(nbytes)
    return f"{nbytes / scale:.3g} {unit}"


def words(rows, totals, title) -> str:
    """What is drawn, in words."""
    said = []
    for name, kinds in rows.items():
        scale, _ = unit_of(totals[name])
        parts = ", ".join(f"{kind} {two_digits(b / scale)}" for kind, b in kinds.items())
        said.append(f"{name}, {bytes_text(totals[name])}{f': {parts}' if parts else ''}")
    return headed(title, f"Bars of bytes by kind. {'; '.join(said)}.")

"""Show a measurement as a small table, or as bars."""

from collections.abc import Mapping

from helpers.plots.page import table as html_table
from helpers.plots.style import RANK_COLORS as COLORS


def table(title: str, rows: Mapping[str, str]) -> str:
    """Make an HTML table with two columns: a name, and a number with its unit."""
    return html_table(rows.items(), title=title, align=["left", "right"])


def text(title: str, rows: Mapping[str, str]) -> str:
    """Make the same table as plain text."""
    width = max(map(len, rows), default=0)
    right = max(map(len, rows.values()), default=0)
    return "\n".join([title, *(f"  {n:<{width}}  {v:>{right}}" for n, v in rows.items())])


def bars(title: str, values: Mapping[str, float], unit: str):
    """Plot one horizontal bar per name. Returns a Picture, which Jupyter draws."""
    from helpers.plots.picture import Picture

    figure = Picture(figsize=(5.2, 0.7 + 0.32 * len(values)), dpi=80, layout="constrained")
    axes = figure.subplots()
    colors = [COLORS[number % len(COLORS)] for number in range(len(values))]
    axes.barh(list(values), list(values.values()), color=colors, height=0.7)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=unit)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def seconds_text(seconds: float) -> str:
    """Format a time in s, ms, µs or ns, whichever reads best."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:  # 999.6 ms would be 1e+03 ms
            return f"{seconds / size:{'.3g' if seconds < 999.5 else '.0f'}} {unit}"
    return f"{seconds / 1e-9:.3g} ns"

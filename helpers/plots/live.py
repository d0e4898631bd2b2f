"""What a call shows while it runs: bars by rank, and a curve that grows."""

import base64
from collections.abc import Mapping

from helpers.plots.style import RANK_COLORS
from helpers.plots.table import Markup, table

LABEL_SHOWN = 80  # characters

Bars = Mapping[tuple[str, int], tuple[int, int | None]]  # (label, rank) -> (done, total or None)
Curves = Mapping[int, tuple[list, list]]  # rank -> (x, y)


def bars_html(bars: Bars) -> str:
    """One bar for each label and rank, as a table."""
    rows = []
    for (label, rank), (done, total) in sorted(bars.items()):
        color = RANK_COLORS[rank % len(RANK_COLORS)]
        share = 100 if total is None else 100 * done / max(total, 1)
        count = f"{done}" if total is None else f"{done}/{total}"
        bar = (
            "<div style='background:#8883;height:.8em;width:16em;margin:0 .5em'>"
            f"<div style='background:{color};height:.8em;width:{share:.0f}%'></div></div>"
        )
        rows.append([f"{printable(label)} rank {rank}", Markup(bar), count])
    return table(rows, align=["right", "left", "left"], style="border:none")


def bars_text(bars: Bars) -> str:
    """The same as words."""
    parts = []
    for (label, rank), (done, total) in sorted(bars.items()):
        count = f"{done}" if total is None else f"{done}/{total}"
        parts.append(f"{printable(label) + ' ' if label else ''}rank {rank}: {count}")
    return ", ".join(parts)


def printable(label: str) -> str:
    """The label on one line, without what a terminal would obey: line ends, colours, a bell."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(label)
    )
    return shown if len(shown) <= LABEL_SHOWN else shown[: LABEL_SHOWN - 1] + "…"


def curve_figure(name: str, curves: Curves, xlabel: str = "step"):
    """A curve for each rank, as a Picture."""
    from helpers.plots.picture import Picture

    figure = Picture(figsize=(5.2, 2.6), dpi=80, layout="constrained")
    axes = figure.subplots()
    for rank, (x, y) in sorted(curves.items()):
        marker = "o" if len(x) < 25 else None
        color = RANK_COLORS[rank % len(RANK_COLORS)]
        axes.plot(x, y, color=color, marker=marker, markersize=3, label=f"rank {rank}", alpha=0.85)
    axes.set(xlabel=xlabel, ylabel=name)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if curves:
        axes.legend(frameon=False, fontsize=8, ncols=2 if len(curves) > 4 else 1)
    return figure


def curve_png(name: str, curves: Curves) -> str:
    """The figure as base64, as Jupyter's display messages carry it."""
    return base64.b64encode(curve_figure(name, curves)._repr_png_()).decode()

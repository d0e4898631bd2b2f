"""Show a running call: a progress bar for each rank, and a curve that grows."""

import base64
from collections.abc import Mapping

from helpers.plots.style import rank_color
from helpers.plots.table import Markup, table

LABEL_SHOWN = 80  # characters

Bars = Mapping[tuple[str, int], tuple[int, int | None]]  # (label, rank) -> (done, total or None)
Curves = Mapping[int, tuple[list, list]]  # rank -> (x, y)


def bars_html(bars: Bars) -> str:
    """One bar for each label and rank, as an HTML table."""
    rows = []
    for (label, rank), (done, total) in sorted(bars.items()):
        color = rank_color(rank)
        share = 100 if total is None else 100 * done / max(total, 1)
        count = f"{done}" if total is None else f"{done}/{total}"
        bar = (
            "<div style='background:#8883;height:.8em;width:16em;margin:0 .5em'>"
            f"<div style='background:{color};height:.8em;width:{share:.0f}%'></div></div>"
        )
        rows.append([f"{printable(label)} rank {rank}", Markup(bar), count])
    return table(rows, align=["right", "left", "left"], style="border:none")


def bars_text(bars: Bars) -> str:
    """The same bars as words."""
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
    from helpers.plots.curve import curves as draw

    series = {f"rank {rank}": (x, y) for rank, (x, y) in sorted(curves.items())}
    thin = {rank: {"ms": 3, "lw": 1.5, "alpha": 0.85} for rank in series}
    key = "inside" if len(series) <= 4 else "right"
    return draw(series, xlabel=xlabel, ylabel=name, styles=thin, key=key, width=5.2, height=2.6)


def curve_output(name: str, curves: Curves) -> tuple[dict, dict]:
    """The figure as Jupyter's display messages carry it: data and metadata, by MIME type."""
    png, metadata = curve_figure(name, curves)._repr_png_()
    data = {"image/png": base64.b64encode(png).decode(), "text/plain": metadata["alt"]}
    return data, {"image/png": metadata}

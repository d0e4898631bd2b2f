"""Draw throughput and time to first token of the serving policies: serving.csv."""

import math
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure
from ratio_chart import GREY, INK, PANEL, read

from helpers.plots.style import SERIES_COLORS

CSV = Path(__file__).with_name("serving.csv")
STATIC = "static"


def draw(path: Path = CSV) -> Figure | None:
    """Draw a panel for each load and one of waiting times. None without measurements."""
    machine, rows = read(path)
    if not rows:
        return None
    for row in rows:
        row |= {name: float(row[name]) for name in ("load", "ratio", "ttft p50", "ttft p99")}
    loads = list(dict.fromkeys(row["load"] for row in rows))
    figure = Figure(figsize=(9.4, 3.5), facecolor=PANEL)
    title = "Serving: the same arrivals, model and memory, other policies"
    figure.text(0.025, 0.91, title, size=14, weight="bold", color=INK)
    subtitle = "throughput over static batches, a dot per seed · time to first token, p50 and p99"
    figure.text(0.025, 0.835, subtitle, size=10, color=GREY)
    figure.text(0.025, 0.03, f"measured on {machine}", size=8, color=GREY)
    names = list(dict.fromkeys(row["policy"] for row in rows))
    width = 0.78 / (len(loads) + 1)
    for column, load in enumerate([*loads, None]):
        place = (0.19 + column * (width + 0.012), 0.2, width - 0.02, 0.5)
        axes = figure.add_axes(place, facecolor=PANEL)
        if load is None:
            waiting(axes, [row for row in rows if row["load"] == loads[0]], names)
            axes.set_title(f"to first token, {words(loads[0])}", size=10, color=INK, loc="left")
        else:
            ratios(axes, [row for row in rows if row["load"] == load], names)
            axes.set_title(words(load), size=10, color=INK, loc="left")
        axes.set_yticks(range(len(names)), names if column == 0 else [""] * len(names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    return figure


def words(load: float) -> str:
    return "all at once" if math.isinf(load) else f"{load:g} × capacity"


def ratios(axes, rows, names):
    """A bar up to the median over the seeds, and a dot for each seed."""
    for place, name in enumerate(names):
        own = [row["ratio"] for row in rows if row["policy"] == name]
        axes.barh(place, median(own), height=0.6, color=SERIES_COLORS[place], alpha=0.75)
        axes.plot(own, [place] * len(own), "o", ms=3, color=INK)
        axes.text(max(own) + 0.06, place, f"{median(own):.2f}×", va="center", size=9, color=INK)
    axes.axvline(1, color=INK, lw=0.8, ls="--")
    axes.set_xlim(0, 3.2)


def waiting(axes, rows, names):
    """A line from p50 to p99, in seconds, on a logarithmic axis."""
    for place, name in enumerate(names):
        own = [row for row in rows if row["policy"] == name]
        ends = [median([row[key] for row in own]) for key in ("ttft p50", "ttft p99")]
        axes.plot(ends, [place, place], "o-", ms=4, color=SERIES_COLORS[place])
    axes.set_xscale("log")
    axes.set_xlabel("seconds", size=9, color=INK)

"""Plot when data parallel helps on one machine: the chart of scaling.csv, from `make bench`."""

import csv
from pathlib import Path

from matplotlib.figure import Figure

from helpers.plots.style import SERIES_COLORS

CSV = Path(__file__).with_name("scaling.csv")
INK, GREY, PANEL = "#1f2933", "#5b6775", "#f3f5f8"


def draw(path: Path = CSV) -> Figure | None:
    """Draw the chart; None if there is no measurement yet."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        machine = file.readline().lstrip("# ").strip()
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(8.6, 4.2), facecolor=PANEL)
    figure.text(0.025, 0.92, "Does data parallel help on one machine?", size=14, weight="bold",
                color=INK)  # fmt: skip
    figure.text(0.025, 0.86, "tokens per second, relative to one rank with one thread",
                size=10, color=GREY)  # fmt: skip
    figure.text(0.025, 0.03, f"measured on {machine}", size=8, color=GREY)
    axes = figure.add_axes((0.3, 0.15, 0.64, 0.65), facecolor=PANEL)
    for place, row in enumerate(rows):
        speed, low, high = (float(row[key]) for key in ("speed", "low", "high"))
        kind = row["case"].split(",")[0]
        color = {"weak": SERIES_COLORS[0], "strong": SERIES_COLORS[1]}.get(kind, "#8c96a3")
        axes.barh(place, speed, height=0.62, color=color, alpha=0.55 if row["shared"] == "1" else 1)
        axes.plot([low, high], [place, place], color=INK, lw=1.2)
        background = {"fc": PANEL, "ec": "none", "pad": 0.6}
        axes.text(max(speed, high) + 0.03, place, f"{speed:.2f}×", va="center", size=9.5,
                  color=INK, bbox=background, zorder=3)  # fmt: skip
    axes.axvline(1, color=INK, lw=0.8, ls="--")
    axes.set_yticks(range(len(rows)), [row["case"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(float(row["high"]) for row in rows))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9.5, labelcolor=INK)
    return figure

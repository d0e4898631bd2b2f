"""Plot gloo's time over our times: the chart of collectives.csv, which `make bench` measures."""

import csv
from pathlib import Path

from matplotlib.figure import Figure

from helpers.plots.style import SERIES_COLORS

CSV = Path(__file__).with_name("collectives.csv")
INK, GREY, PANEL = "#1f2933", "#5b6775", "#f3f5f8"
CONTENDERS = {  # its color and marker
    "MPICH": (SERIES_COLORS[4], "^"),
    "ring": (SERIES_COLORS[6], "D"),
    "shared, copied": (SERIES_COLORS[0], "s"),
    "shared, in place": (SERIES_COLORS[2], "o"),
}
SIZES = {2**16: "64 KB", 2**20: "1 MB", 64 * 2**20: "64 MB"}
TICKS = (0.5, 1, 2, 4, 8, 16, 32)


def draw(path: Path = CSV) -> Figure | None:
    """Draw the chart; None if there is no measurement yet."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        machine = file.readline().lstrip("# ").strip()
        rows = [row for row in csv.DictReader(file) if row["ratio"]]
    figure = Figure(figsize=(9.4, 5.6), facecolor=PANEL)
    figure.text(
        0.025, 0.93, "Collectives on one machine: speed-up over gloo",
        size=14, weight="bold", color=INK,
    )  # fmt: skip
    figure.text(
        0.025, 0.875, "median of pairs, 95 % interval, logarithmic; 64 KB to 64 MB",
        size=10, color=GREY,
    )  # fmt: skip
    figure.text(0.025, 0.03, f"measured on {machine}", size=8, color=GREY)
    names = list(dict.fromkeys((row["collective"], int(row["bytes"])) for row in rows))
    for column, ranks in enumerate((2, 4)):
        axes = figure.add_axes((0.2 + 0.405 * column, 0.15, 0.375, 0.58))
        panel(axes, [row for row in rows if int(row["ranks"]) == ranks], names, column == 0)
        axes.set_title(f"{ranks} ranks", size=11, color=INK, loc="left")
    points = figure.axes[0].get_legend_handles_labels()
    figure.legend(*points, loc=(0.19, 0.785), ncols=4, frameon=False, fontsize=9.5)
    return figure


def panel(axes, rows, names: list[tuple[str, int]], named: bool):
    """Plot a point per contender and collective, with its interval."""
    axes.set(xscale="log", xlim=(0.3, 48), ylim=(len(names) - 0.45, -0.55), facecolor=PANEL)
    axes.set_xticks(TICKS, [f"{tick:g}×" for tick in TICKS])
    axes.minorticks_off()
    axes.grid(axis="x", color="#cfd6de", lw=0.8)
    axes.axvline(1, color=GREY, lw=1.2)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9.5, labelcolor=INK)
    labels = [f"{name}, {SIZES.get(nbytes, nbytes)}" for name, nbytes in names]
    axes.set_yticks(range(len(names)), labels if named else [""] * len(names))
    for contender, (color, marker) in CONTENDERS.items():
        mine = [row for row in rows if row["contender"] == contender]
        shift = 0.2 * (list(CONTENDERS).index(contender) - 1.5)
        places = [names.index((row["collective"], int(row["bytes"]))) + shift for row in mine]
        axes.hlines(places, [float(r["low"]) for r in mine], [float(r["high"]) for r in mine],
                    color=color, lw=1.6, alpha=0.6)  # fmt: skip
        axes.plot(
            [float(r["ratio"]) for r in mine], places, marker, color=color, ms=6.5, label=contender
        )

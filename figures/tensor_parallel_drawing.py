"""Plot tensor parallel steps beside DTensor's: the chart of tensor_parallel.csv."""

import csv
from pathlib import Path

from matplotlib.figure import Figure

from helpers.plots.style import PROGRAM_COLORS

CSV = Path(__file__).with_name("tensor_parallel.csv")
INK, GREY, PANEL = "#1f2933", "#5b6775", "#f3f5f8"


def draw(path: Path = CSV) -> Figure | None:
    """Draw the chart; None if there is no measurement yet."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        machine = file.readline().lstrip("# ").strip()
        rows = list(csv.DictReader(file))
    tokens = list(dict.fromkeys(row["tokens"] for row in rows))
    most = 1.2 * max(float(row["high"]) for row in rows)
    figure = Figure(figsize=(9.4, 4.2), facecolor=PANEL)
    figure.text(0.025, 0.92, "Tensor and sequence parallel steps beside DTensor's", size=14,
                weight="bold", color=INK)  # fmt: skip
    figure.text(0.025, 0.86, "time of a step, divided by DTensor's on the same work; 2 ranks",
                size=10, color=GREY)  # fmt: skip
    figure.text(0.025, 0.03, f"measured on {machine}", size=8, color=GREY)
    for column, count in enumerate(tokens):
        axes = figure.add_axes((0.23 + 0.385 * column, 0.15, 0.36, 0.6), facecolor=PANEL)
        panel(axes, [row for row in rows if row["tokens"] == count], named=column == 0)
        axes.set_xlim(0, most)
        axes.set_title(f"{count} tokens", size=11, color=INK, loc="left")
    return figure


def panel(axes, rows, named: bool):
    """Plot a bar for each contender, with its interval, its time and its goal."""
    for place, row in enumerate(rows):
        ratio, low, high = (float(row[key]) for key in ("ratio", "low", "high"))
        peer = row["contender"].startswith("DTensor")
        color = PROGRAM_COLORS["PyTorch" if peer else "ours"]
        shared = "shared memory" in row["contender"]
        axes.barh(place, ratio, height=0.62, color=color, alpha=0.55 if shared else 1)
        if not peer:
            axes.plot([low, high], [place, place], color=INK, lw=1.2)
        if row["goal"]:
            axes.plot([float(row["goal"])] * 2, [place - 0.4, place + 0.4], color=INK, lw=1, ls=":")
        text = f"{1e3 * float(row['median']):.0f} ms" if peer else f"{ratio:.2f}×"
        background = {"fc": PANEL, "ec": "none", "pad": 0.6}
        axes.text(max(ratio, high) + 0.02, place, text, va="center", size=9.5, color=INK,
                  bbox=background, zorder=3)  # fmt: skip
    axes.set_yticks(
        range(len(rows)), [row["contender"] for row in rows] if named else [""] * len(rows)
    )
    axes.invert_yaxis()
    axes.axvline(1, color=INK, lw=0.8, ls="--")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9.5, labelcolor=INK)

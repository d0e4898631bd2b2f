"""Draw decoding beside transformers, and the time of a step over the context: decoding.csv."""

from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import GREY, INK, PANEL, read

from helpers.plots.style import PROGRAM_COLORS

CSV = Path(__file__).with_name("decoding.csv")
OURS = "ours"


def draw(path: Path = CSV) -> Figure | None:
    """Draw two panels: ratios by size, and milliseconds over context. None without measurements."""
    machine, rows = read(path)
    if not rows:
        return None
    figure = Figure(figsize=(9.4, 3.9), facecolor=PANEL)
    figure.text(0.025, 0.925, "Greedy decoding of a small Llama", size=14, weight="bold", color=INK)
    subtitle = "time over that of transformers with its faster cache · time of a step over context"
    figure.text(0.025, 0.86, subtitle, size=10, color=GREY)
    figure.text(0.025, 0.03, f"measured on {machine}", size=8, color=GREY)
    left = figure.add_axes((0.19, 0.2, 0.33, 0.58), facecolor=PANEL)
    right = figure.add_axes((0.6, 0.2, 0.37, 0.58), facecolor=PANEL)
    ratios(left, [r for r in rows if r["kind"] == "beside" and r["contender"] == OURS])
    steps(right, [r for r in rows if r["kind"] == "context"])
    return figure


def ratios(axes, rows):
    """One bar per size, with its interval and its goal."""
    for place, row in enumerate(rows):
        ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
        axes.barh(place, ratio, height=0.62, color=PROGRAM_COLORS["ours"])
        axes.plot([low, high], [place, place], color=INK, lw=1.2)
        if row["goal"]:
            axes.plot([float(row["goal"])] * 2, [place - 0.4, place + 0.4], color=INK, lw=1, ls=":")
        axes.text(max(ratio, high) + 0.02, place, f"{ratio:.2f}×", va="center", size=9, color=INK)
    names = [f"batch {row['batch']}, {row['tokens']} tokens" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.axvline(1, color=INK, lw=0.8, ls="--")
    axes.set_xlim(0, 1.1)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)


def steps(axes, rows):
    """Milliseconds of a step over the tokens in the cache: a line per batch."""
    colors = list(PROGRAM_COLORS.values())
    for number, batch in enumerate(dict.fromkeys(row["batch"] for row in rows)):
        own = [row for row in rows if row["batch"] == batch]
        x = [int(row["tokens"]) for row in own]
        y = [1e3 * float(row["median"]) for row in own]
        axes.plot(x, y, "o-", ms=3.5, color=colors[number], label=f"batch {batch}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens in each sequence", size=9, color=INK)
    axes.set_ylabel("ms a step", size=9, color=INK)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, labelcolor=INK)

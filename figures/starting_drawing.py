"""Plot how long a notebook waits for a call: the chart of starting.csv, from `make bench`."""

import csv
from pathlib import Path

from matplotlib.figure import Figure

from helpers.plots.style import PROGRAM_COLORS

CSV = Path(__file__).with_name("starting.csv")
INK, GREY, PANEL = "#1f2933", "#5b6775", "#f3f5f8"
COLORS = {
    "Cluster": PROGRAM_COLORS["ours"],
    "launch": PROGRAM_COLORS["ours"],
    "notebook_launcher, eager": PROGRAM_COLORS["Accelerate"],
    "notebook_launcher": PROGRAM_COLORS["Accelerate"],
    "forkserver": PROGRAM_COLORS["PyTorch"],
    "mp.spawn": PROGRAM_COLORS["PyTorch"],
}
MARKERS = {2: "o", 4: "s"}  # by the number of ranks
PANELS = (
    ("later call: an all-reduce", "a trivial all-reduce"),
    ("later call: a step of AdamW", "one step of AdamW"),
)


def draw(path: Path = CSV) -> Figure | None:
    """Draw the chart; None if there is no measurement yet."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        machine = file.readline().lstrip("# ").strip()
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(9.4, 4.5), facecolor=PANEL)
    figure.text(
        0.025, 0.93, "Time from running a cell to its result", size=14, weight="bold", color=INK
    )
    figure.text(0.025, 0.875, "later calls, including the process group; median, logarithmic scale",
                size=10, color=GREY)  # fmt: skip
    figure.text(0.025, 0.03, f"measured on {machine}", size=8, color=GREY)
    for column, (case, title) in enumerate(PANELS):
        axes = figure.add_axes((0.2 + 0.41 * column, 0.15, 0.37, 0.6))
        panel(axes, [row for row in rows if row["case"] == case], named=column == 0)
        axes.set_title(title, size=11, color=INK, loc="left")
    return figure


def panel(axes, rows, named: bool):
    """Plot a point per launcher and number of ranks, labelled with its time."""
    axes.set(xscale="log", xlim=(0.004, 40), ylim=(len(COLORS) - 0.45, -0.55), facecolor=PANEL)
    axes.set_xticks([0.01, 0.1, 1, 10], ["10 ms", "100 ms", "1 s", "10 s"])
    axes.minorticks_off()
    axes.grid(axis="x", color="#cfd6de", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9.5, labelcolor=INK)
    names = [name.replace(", eager", ",\nchecking every 10 ms") for name in COLORS]
    axes.set_yticks(range(len(COLORS)), names if named else [""] * len(COLORS))
    for row in rows:
        name, ranks, seconds = row["launcher"], int(row["ranks"]), float(row["median"])
        if name not in COLORS or not seconds > 0:  # none of the calls ended
            continue
        place = list(COLORS).index(name)
        y = place + (-0.19 if ranks == 2 else 0.19)
        axes.plot(seconds, y, MARKERS[ranks], color=COLORS[name], ms=8)
        time = f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
        note = f", {ranks} ranks" if place == 0 else ""
        background = {"fc": PANEL, "ec": "none", "pad": 0.6}
        axes.text(seconds * 1.28, y, time + note, size=9, va="center", color=INK, bbox=background)

"""A chart of ratios of times: bars for our contenders, beside a peer at 1."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from helpers.plots.style import PROGRAM_COLORS

INK, GREY, PANEL = "#1f2933", "#5b6775", "#f3f5f8"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One contender: its time over the peer's, with a 95 % interval. `seconds`: of a step."""

    name: str
    seconds: float
    ratio: float
    low: float
    high: float
    goal: float | None = None
    peer: bool = False

    @classmethod
    def of(cls, row: Mapping[str, str], peer: bool) -> "Bar":
        """From a row of a benchmark's table."""
        numbers = {key: float(row[key]) for key in ("ratio", "low", "high")}
        goal = float(row["goal"]) if row["goal"] else None
        seconds = float(row["median"])
        return cls(name=row["contender"], seconds=seconds, goal=goal, peer=peer, **numbers)


def read(path: Path) -> tuple[str, list[dict[str, str]]]:
    """Read a benchmark's table: (the machine, the rows); no rows if there is no measurement yet."""
    if not path.exists():
        return "", []
    with path.open(encoding="utf-8") as file:
        machine = file.readline().lstrip("# ").strip()
        return machine, list(csv.DictReader(file))


def chart(title: str, subtitle: str, machine: str, panels: Mapping[str, Sequence[Bar]]) -> Figure:
    """Draw the panels side by side, with one scale. All panels have the same names."""
    most = 1.2 * max(bar.high for bars in panels.values() for bar in bars)
    count = max(map(len, panels.values()))
    figure = Figure(figsize=(9.4, 1.7 + 0.36 * count), facecolor=PANEL)
    height = figure.get_figheight()
    figure.text(0.025, 1 - 0.34 / height, title, size=14, weight="bold", color=INK)
    figure.text(0.025, 1 - 0.59 / height, subtitle, size=10, color=GREY)
    figure.text(0.025, 0.13 / height, f"measured on {machine}", size=8, color=GREY)
    width = 0.745 / len(panels)
    for column, (name, bars) in enumerate(panels.items()):
        place = (0.245 + width * column, 0.62 / height, width - 0.025, 1 - 1.65 / height)
        axes = figure.add_axes(place, facecolor=PANEL)
        panel(axes, bars, named=column == 0)
        axes.set_xlim(0, most)
        axes.set_title(name, size=11, color=INK, loc="left")
    return figure


def panel(axes, bars: Sequence[Bar], named: bool):
    """Plot a bar for each contender, with its interval, its time and its goal."""
    for place, bar in enumerate(bars):
        color = PROGRAM_COLORS["PyTorch" if bar.peer else "ours"]
        alpha = 0.55 if "shared memory" in bar.name else 1
        axes.barh(place, bar.ratio, height=0.62, color=color, alpha=alpha)
        if not bar.peer:
            axes.plot([bar.low, bar.high], [place, place], color=INK, lw=1.2)
        if bar.goal is not None:
            axes.plot([bar.goal] * 2, [place - 0.4, place + 0.4], color=INK, lw=1, ls=":")
        text = f"{1e3 * bar.seconds:.0f} ms" if bar.peer else f"{bar.ratio:.2f}×"
        background = {"fc": PANEL, "ec": "none", "pad": 0.6}
        axes.text(max(bar.ratio, bar.high) + 0.02, place, text, va="center", size=9.5, color=INK,
                  bbox=background, zorder=3)  # fmt: skip
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars] if named else [""] * len(bars))
    axes.invert_yaxis()
    axes.axvline(1, color=INK, lw=0.8, ls="--")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9.5, labelcolor=INK)

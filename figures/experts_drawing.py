"""Plot the losses of sparse models beside a dense one at equal FLOPs: the chart of experts.csv."""

import statistics
from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import read

from helpers.plots.curve import curves
from helpers.scaling.experts import compared

CSV = Path(__file__).with_name("experts.csv")
KINDS = {"seed": int, "step": int, "flops": float, "loss": float}


def draw(path: Path = CSV) -> Figure | None:
    """Draw each sparse kind's loss less the dense model's of the same seed; None without a table.

    Each point is a mean over the seeds.
    """
    machine, rows = read(path)
    if not rows:
        return None
    rows = [row | {key: kind(row[key]) for key, kind in KINDS.items()} for row in rows]
    runs: dict = {}  # (kind, seed) -> its losses, in order: the runs are read after equal FLOPs
    for row in rows:
        runs.setdefault((row["kind"], row["seed"]), []).append(row)
    series = {}
    for kind, (_, mean, half) in compared(rows).items():
        if kind != "dense":
            pairs = [(run, runs["dense", seed]) for (own, seed), run in runs.items() if own == kind]
            less = [
                statistics.mean(run[k]["loss"] - dense[k]["loss"] for run, dense in pairs)
                for k in range(len(pairs[0][0]))
            ]
            flops = [row["flops"] / 1e9 for row in pairs[0][0]]
            series[f"{kind}: {mean:+.3f} ± {half:.3f}"] = flops, less
    least = min(value for _, less in series.values() for value in less)
    picture = curves(
        series,
        ylim=(1.1 * least, -0.15 * least),
        hlines={"dense": 0},
        title="8 experts, of which a token meets 2",
        xlabel="GFLOPs of the training",
        ylabel="loss less the dense model's",
        key="right",
    )
    picture.text(0.01, 0.01, f"measured on {machine}", size=5, color="#5b6775")
    return picture

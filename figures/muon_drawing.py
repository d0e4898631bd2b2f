"""Plot the losses of AdamW and Muon against FLOPs: the chart of muon.csv."""

from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import read

from helpers.plots.curve import curves
from helpers.scaling.optimizers import compared

CSV = Path(__file__).with_name("muon.csv")
KINDS = {"rate": float, "seed": int, "step": int, "flops": float, "loss": float}


def draw(path: Path = CSV) -> Figure | None:
    """Draw a line for each seed at the best rates; None if there is no measurement yet."""
    machine, rows = read(path)
    if not rows:
        return None
    rows = [row | {key: kind(row[key]) for key, kind in KINDS.items()} for row in rows]
    found, series, styles = compared(rows), {}, {}
    for color, (rule, rate) in zip(("C0", "C1"), found.rates.items(), strict=True):
        own = [row for row in rows if (row["rule"], row["rate"]) == (rule, rate)]
        for seed in sorted({row["seed"] for row in own}):
            run = [row for row in own if row["seed"] == seed]
            name = f"{rule}, rate {rate:g}" if seed == 0 else f"_{rule} {seed}"
            series[name] = [row["flops"] for row in run], [row["loss"] for row in run]
            styles[name] = {"color": color, "lw": 1, "marker": "o", "ms": 3}
    picture = curves(
        series,
        styles=styles,
        title=f"Muon's loss less AdamW's: {found.mean:+.3f} ± {found.half:.3f} nats a byte",
        xlabel="FLOPs, with those of the update",
        ylabel="held-out loss (nats a byte)",
    )
    picture.text(0.01, 0.01, f"measured on {machine}", size=5, color="#5b6775")
    return picture

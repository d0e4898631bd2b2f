"""Plot the losses of dense and sparse models against FLOPs: the chart of experts.csv."""

from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import read

from helpers.plots.curve import curves
from helpers.scaling.experts import compared

CSV = Path(__file__).with_name("experts.csv")
KINDS = {"seed": int, "step": int, "flops": float, "loss": float}


def draw(path: Path = CSV) -> Figure | None:
    """Draw a line for each seed of each kind; None if there is no measurement yet."""
    machine, rows = read(path)
    if not rows:
        return None
    rows = [row | {key: kind(row[key]) for key, kind in KINDS.items()} for row in rows]
    found, series, styles = compared(rows), {}, {}
    for number, (kind, (loss, mean, half)) in enumerate(found.items()):
        own = [row for row in rows if row["kind"] == kind]
        for seed in sorted({row["seed"] for row in own}):
            run = [row for row in own if row["seed"] == seed]
            less = "" if kind == "dense" else f" ({mean:+.3f} ± {half:.3f})"
            name = f"{kind}: {loss:.3f}{less}" if seed == 0 else f"_{kind} {seed}"
            series[name] = [row["flops"] for row in run], [row["loss"] for row in run]
            styles[name] = {"color": f"C{number}", "lw": 1, "marker": "o", "ms": 3}
    picture = curves(
        series,
        styles=styles,
        title="Dense, and 8 experts of which a token meets 2, at equal FLOPs",
        xlabel="FLOPs",
        ylabel="held-out loss (nats a byte)",
    )
    picture.text(0.01, 0.01, f"measured on {machine}", size=5, color="#5b6775")
    return picture

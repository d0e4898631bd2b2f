"""Plot ZeRO steps beside PyTorch's: the chart of zero.csv."""

from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import Bar, chart, read

CSV = Path(__file__).with_name("zero.csv")


def draw(path: Path = CSV) -> Figure | None:
    """Draw the chart; None if there is no measurement yet."""
    machine, rows = read(path)
    if not rows:
        return None
    bars = [Bar.of(row, peer=row["contender"] == row["peer"]) for row in rows]
    return chart(
        "ZeRO steps beside PyTorch's own",
        "time of a step, divided by that of the peer above it; 2 ranks; dotted: the goal",
        machine,
        {"one sequence of 128 tokens a rank": bars},
    )

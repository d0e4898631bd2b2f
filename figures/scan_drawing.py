"""Plot the scans beside plain PyTorch's: the chart of scan.csv."""

from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import Bar, chart, read

CSV = Path(__file__).with_name("scan.csv")


def draw(path: Path = CSV) -> Figure | None:
    """Draw the chart; None if there is no measurement yet."""
    machine, rows = read(path)
    if not rows:
        return None
    panels = {}
    for row in rows:
        bar = Bar.of(row, peer=row["contender"] == row["peer"])
        panels.setdefault(f"{row['length']} tokens", []).append(bar)
    return chart(
        "Scans beside plain PyTorch",
        "time forward and backward, divided by that of the peer above it; dotted: the goal",
        machine,
        panels,
    )

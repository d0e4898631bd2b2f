"""Plot tensor parallel steps beside DTensor's: the chart of tensor_parallel.csv."""

from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import Bar, chart, read

CSV = Path(__file__).with_name("tensor_parallel.csv")


def draw(path: Path = CSV) -> Figure | None:
    """Draw the chart; None if there is no measurement yet."""
    machine, rows = read(path)
    panels = {}
    for row in rows:
        bars = panels.setdefault(f"{row['tokens']} tokens", [])
        bars.append(Bar.of(row, peer=row["contender"].startswith("DTensor")))
    if not panels:
        return None
    return chart(
        "Tensor and sequence parallel steps beside DTensor's",
        "time of a step, divided by DTensor's on the same work; 2 ranks; dotted: the goal",
        machine,
        panels,
    )

"""Place AdamW's updates on the roofline of one core: the chart of adam.csv."""

from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import read

from helpers.plots.roofline import roofline

CSV = Path(__file__).with_name("adam.csv")


def draw(path: Path = CSV) -> Figure | None:
    """Draw the CPU's measurements; None if there are none yet."""
    machine, rows = read(path)
    rows = [row for row in rows if row["device"].startswith("CPU")]
    if not rows:
        return None
    [(peak, bandwidth)] = {(float(row["peak"]), float(row["bandwidth"])) for row in rows}
    points = {
        f"{row['contender']}: {1e3 * float(row['median']):.0f} ms": (
            float(row["intensity"]),
            float(row["flops"]),
        )
        for row in rows
    }
    numbers = int(rows[0]["numbers"]) / 1e6
    picture = roofline(
        {"one core, measured": (peak, bandwidth)},
        measured=points,
        intensities=(0.05, 50),
        title=f"AdamW updates {numbers:.1f} million parameters",
    )
    picture.text(0.01, 0.01, f"measured on {machine}", size=5, color="#5b6775")
    return picture

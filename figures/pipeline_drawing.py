"""Plot pipeline steps beside torch.distributed.pipelining's: the chart of pipeline.csv."""

from pathlib import Path

from matplotlib.figure import Figure
from ratio_chart import Bar, chart, read

CSV = Path(__file__).with_name("pipeline.csv")


def draw(path: Path = CSV) -> Figure | None:
    """Draw the chart; None if there is no measurement yet."""
    machine, rows = read(path)
    if not rows:
        return None
    bars = []
    for row in rows:
        ours = row | {"contender": row["schedule"], "median": row["ours"]}
        theirs = {"contender": f"{row['schedule']}, PyTorch", "median": row["theirs"], "goal": ""}
        bars.append(Bar.of(theirs | dict.fromkeys(("ratio", "low", "high"), "1"), peer=True))
        bars.append(Bar.of(ours, peer=False))
    return chart(
        "Pipeline steps beside torch.distributed.pipelining's",
        "time of a step, divided by PyTorch's with the same schedule; 2 ranks; dotted: the goal",
        machine,
        {"8 sequences of 128 tokens, in 8 micro-batches": bars},
    )

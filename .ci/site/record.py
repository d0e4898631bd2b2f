"""Record runs for the site's replays: real ranks, real messages, a paced computation.

    python .ci/site/record.py

Each file of replays/ is one run: when each rank computed what, in units of a forward.
"""

import json
from pathlib import Path

from helpers import launch
from helpers.comm.mesh import Layout, make_mesh
from helpers.parallel.pipeline.paced import merged, paced
from helpers.plans import schedules
from helpers.plans.schedules import Costs

FOLDER = Path(__file__).with_name("replays")
RANKS, MICRO_BATCHES, SECONDS = 4, 8, 0.2  # seconds of a forward
RUNS = {
    "gpipe": ("GPipe", schedules.gpipe(RANKS, MICRO_BATCHES)),
    "1f1b": ("1F1B", schedules.one_f_one_b(RANKS, MICRO_BATCHES)),
    "zb-h1": ("ZB-H1", schedules.zero_bubble_h1(RANKS, MICRO_BATCHES)),
}
KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


def run(worker, schedule):
    mesh = make_mesh(Layout(pp=worker.world_size))
    return paced(mesh, schedule, Costs(), seconds=SECONDS)


def recorded(title, schedule) -> dict:
    """Run the schedule on ranks; return the boxes of a replay."""
    spans = merged(launch(run, RANKS, schedule=schedule, device="cpu"), seconds=SECONDS)
    boxes = [
        {
            "row": span.rank,
            "start": round(span.start, 3),
            "end": round(span.stop, 3),
            "label": str(span.action.micro),
            "kind": KINDS[span.action.kind],
        }
        for span in spans
    ]
    return {
        "title": f"{title}: {RANKS} ranks, {MICRO_BATCHES} micro-batches",
        "rows": [f"rank {rank}" for rank in range(RANKS)],
        "unit": "forwards",
        "boxes": sorted(boxes, key=lambda box: (box["start"], box["row"])),
    }


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, (title, schedule) in RUNS.items():
        text = json.dumps(recorded(title, schedule), indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}.json")


if __name__ == "__main__":
    main()

"""Record runs for the site's replays: real ranks and real messages, or the engine that serves.

    python .ci/site/record.py [name]        one run, or all

Each file of replays/ is one run: what each row did when, and where the course teaches it.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import torch

from helpers import launch
from helpers.comm.collectives import ring_all_reduce
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.messages import Peers
from helpers.data.batch import random_batch
from helpers.inference.engine.clock import Virtual
from helpers.inference.engine.engine import Engine
from helpers.inference.engine.policies import Continuous
from helpers.inference.workload import poisson
from helpers.models.gpt import GPTConfig, build
from helpers.parallel.pipeline.paced import merged, paced
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.film import filming
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans import schedules
from helpers.plans.schedules import Costs

FOLDER = Path(__file__).with_name("replays")
RANKS, MICRO_BATCHES, SECONDS = 4, 8, 0.2  # seconds of a forward, and of a ring's step
KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
RANK_ROWS = [f"rank {rank}" for rank in range(RANKS)]


def box(row: int, start: float, end: float, kind: str, label="") -> dict:
    times = {"start": round(start, 3), "end": round(end, 3)}
    return {"row": row, **times, "label": str(label), "kind": kind}


def run(worker, schedule):
    mesh = make_mesh(Layout(pp=worker.world_size))
    return paced(mesh, schedule, Costs(), seconds=SECONDS)


def pipeline(title: str, schedule, before: str) -> dict:
    """Run the schedule on ranks that sleep for each computation."""
    spans = merged(launch(run, RANKS, schedule=schedule, device="cpu"), seconds=SECONDS)
    return {
        "title": f"{title}: {RANKS} ranks, {MICRO_BATCHES} micro-batches",
        "notebook": "week05_pipeline_parallel",
        "before": before,
        "rows": RANK_ROWS,
        "unit": "forwards",
        "busy": "ranks compute",
        "about": "The number is the micro-batch.",
        "seconds": 15,
        "boxes": [
            box(span.rank, span.start, span.stop, KINDS[span.action.kind], span.action.micro)
            for span in spans
        ],
    }


def passing(worker):
    """A ring's all-reduce, whose steps take SECONDS each: (start, end, step, chunk)."""
    steps, exchange = [], Peers.exchange

    def recorded(peers, send, to, receive, source):
        start, step = time.monotonic(), len(steps)
        exchange(peers, send, to, receive, source)
        time.sleep(max(0.0, start + SECONDS - time.monotonic()))
        added = min(step + 1, RANKS)  # every rank adds the chunk's number
        steps.append((start, time.monotonic(), step, int(send[0] / added)))

    chunks = torch.arange(float(RANKS)).repeat_interleave(2)
    ring_all_reduce(chunks.clone())  # makes the connections
    Peers.exchange = recorded
    ring_all_reduce(chunks)
    return steps


def ring() -> dict:
    runs = launch(passing, RANKS, device="cpu")
    first = min(start for own in runs for start, *_ in own)
    return {
        "title": f"all-reduce around a ring of {RANKS} ranks",
        "notebook": "week01b_rings_and_bytes",
        "before": "## 4",
        "rows": RANK_ROWS,
        "unit": "steps",
        "busy": "ranks send",
        "about": "Each rank sends to the next one. The number is the chunk.",
        "seconds": 9,
        "boxes": [
            box(rank, (start - first) / SECONDS, (end - first) / SECONDS,
                "send a sum" if step < RANKS - 1 else "send a result", chunk)
            for rank, own in enumerate(runs)
            for start, end, step, chunk in own
        ],
    }  # fmt: skip


def filmed(worker):
    torch.set_num_threads(1)
    config = GPTConfig(vocab=256, context=64, width=256, layers=6, heads=4, tied=False)
    trainer = Recipe(owner=Zero3)(config, 0, make_mesh(Layout(dp=worker.world_size)))
    batch = random_batch(worker.rank, 4, 64, config.vocab)
    for _ in range(3):  # the first step learns the order of the units
        with filming(trainer.owner) as film:
            trainer.step(batch)
    trainer.close()
    return film.events


def zero_3() -> dict:
    events = [one for one in launch(filmed, 2, device="cpu")[0] if one["kind"] == "gathered"]
    units, now, boxes = list(dict.fromkeys(one["unit"] for one in events)), {}, []
    first = events[0]["time"]
    kinds = {"gathering": "gather", "in use": "gathered"}
    for one in events:
        time_ms, row = 1000 * (one["time"] - first), units.index(one["unit"])
        if row in now:
            kind, start = now.pop(row)
            boxes.append(box(row, start, time_ms, kind))
        if one["state"] in kinds:
            now[row] = kinds[one["state"]], time_ms
    return {
        "title": "ZeRO-3: the layers that rank 0 of 2 has whole",
        "notebook": "week06b_zero_3",
        "before": "## 3",
        "rows": units,
        "unit": "ms",
        "busy": "units are here, or are coming",
        "about": "A forward from the first unit to the last, then a backward. "
        "The next unit is gathered while one is in use.",
        "seconds": 15,
        "boxes": boxes,
    }


def serving() -> dict:
    torch.manual_seed(0)
    config = GPTConfig(vocab=256, context=128, width=64, layers=2, heads=4)
    requests = poisson(float("inf"), 12, seed=1, prompt=(4, 12), new_tokens=10, most=30)
    served = Engine(build(config), Continuous(4), 80, 16).run(requests, Virtual())
    return {
        "title": "continuous batching: 12 requests, at most 4 in a step",
        "notebook": "week09b_serving",
        "before": "## 4",
        "rows": [f"request {one.number}" for one in served.requests],
        "unit": "steps",
        "busy": "requests are waiting or served",
        "about": "Each step generates a token of every request in the batch.",
        "seconds": 15,
        "boxes": [
            box(row, span.start, span.end, span.kind)
            for row, one in enumerate(served.requests)
            for span in one.spans
        ],
    }


RUNS = {
    "gpipe": partial(pipeline, "GPipe", schedules.gpipe(RANKS, MICRO_BATCHES), "## 3"),
    "1f1b": partial(pipeline, "1F1B", schedules.one_f_one_b(RANKS, MICRO_BATCHES), "## 5"),
    "zb-h1": partial(pipeline, "ZB-H1", schedules.zero_bubble_h1(RANKS, MICRO_BATCHES), "### Your"),
    "ring": ring,
    "zero-3": zero_3,
    "serving": serving,
}


def main(names):
    FOLDER.mkdir(exist_ok=True)
    for name in names or RUNS:
        run = RUNS[name]()
        run["boxes"].sort(key=lambda one: (one["start"], one["row"]))
        boxes = ",\n".join(map(json.dumps, run.pop("boxes")))
        text = json.dumps(run)[:-1] + f', "boxes": [\n{boxes}\n]}}\n'
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}.json")


if __name__ == "__main__":
    main(sys.argv[1:])

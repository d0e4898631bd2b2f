"""Plan every cluster of the page "Plan your cluster", for its script: plans.json.

    python .ci/site/plans.py

A case is a model, a machine, a number of GPUs, a batch and the network's speed. Each has its front
of time against memory, thinned: of plans that need nearly the same memory, only the fastest stays.
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

from helpers.models.shape import GPTShape
from helpers.planner.plan import RECOMPUTE, Plans, Point, plan
from helpers.simulate.hardware import A100, H100
from helpers.simulate.kernels import Rates, total
from helpers.simulate.topology import DGX_A100, DGX_H100

FILE = Path(__file__).with_suffix(".json")
MODELS = {
    "8B": "Llama 3, 8 billion",
    "70B": "Llama 2, 70 billion",
    "405B": "Llama 3, 405 billion",
}
MACHINES = {"A100": (DGX_A100, Rates()),
            "H100": (DGX_H100, Rates(processor=H100, multiprocessors=132))}  # fmt: skip
PROCESSORS = {"A100": A100, "H100": H100}
GPUS = (8, 64, 512, 16_384)
TOKENS = (2**22, 2**24)  # of the global batch
LINKS = (0.25, 1, 4)  # the bandwidth between machines, times that of the machine's own cards
FITS = 0.9  # of a GPU's memory: the allocator and the libraries need some, and are not simulated
LARGEST = 2  # a plan of a front needs at most this many GPUs' memory
THIN = 0.7  # the next plan of a front needs at most this share of the memory
PARTS = ("computing", "host", "tp", "pp", "bubble", "dp", "optimizer")


def cases():
    """One machine alone uses no network: its cases end with the batch."""
    for *case, gpus, tokens in product(MODELS, MACHINES, GPUS, TOKENS):
        for link in LINKS if gpus > min(GPUS) else (None,):
            yield (*case, gpus, tokens, *[link] * (link is not None))


def found(model: str, machine: str, gpus: int, tokens: int, link: float = 1) -> list[list]:
    """Plan one case, and return its rows, the fastest plan first.

    Returns:
        [pp, dp, tp, micro-batch, chunks, ZeRO, recomputation's number, 1e9 bytes, seconds, parts]
        for each plan; parts are thousandths of the seconds, in the order of PARTS.
    """
    config = GPTShape.preset(model)
    cluster, rates = MACHINES[machine]
    rail = replace(cluster.rail, bytes_per_second=link * cluster.rail.bytes_per_second)
    cluster = replace(cluster, rail=rail).of(gpus)
    memory, asked = PROCESSORS[machine].memory_bytes, (config, cluster, tokens // config.context)
    try:
        plans = plan(*asked, rates=rates, memory=LARGEST * memory)
    except ValueError:  # the page then shows the smallest
        plans = plan(*asked, rates=rates)
    return [row(point) for point in thinned(plans, memory)]


def thinned(plans: Plans, memory: float) -> list[Point]:
    """Leave out what needs twice the memory, and neighbours; never the plan that is chosen."""
    fits = [point for point in plans.points if point.bytes <= FITS * memory]
    kept = []
    for point in plans.points:
        smaller = not kept or point.bytes <= THIN * kept[-1].bytes
        if (point.bytes <= LARGEST * memory and smaller) or point in (
            fits[:1] or plans.points[-1:]
        ):
            kept.append(point)
    return kept


def row(point: Point) -> list:
    plan, step = point.plan, point.step
    cut = [plan.ranks(axis) for axis in ("pp", "dp", "tp")]
    options = [plan.micro, plan.chunks, plan.zero, RECOMPUTE.index(point.config.recompute)]
    parts = [round(1000 * step.parts[part] / step.seconds) for part in PARTS]
    return [*cut, *options, float(f"{point.bytes / 1e9:.3g}"), float(f"{point.seconds:.4g}"), parts]


def choices() -> dict:
    """What the page offers, and what it needs to know of it."""
    shapes = {name: GPTShape.preset(name) for name in MODELS}
    models = {
        name: {"title": title, "context": shapes[name].context, "parameters": total(shapes[name])}
        for name, title in MODELS.items()
    }
    machines = {
        name: {
            "memory": PROCESSORS[name].memory_bytes,
            "peak": PROCESSORS[name].peak(),
            "network": PROCESSORS[name].network_bytes_per_second_each_way,
        }
        for name in MACHINES
    }
    lists = {"gpus": GPUS, "tokens": TOKENS, "links": LINKS, "parts": PARTS}
    return {"model": models, "machine": machines, **lists, "recompute": RECOMPUTE, "fits": FITS}


def main():
    lines = [
        f"{json.dumps(' '.join(map(str, case)))}: {json.dumps(found(*case), separators=(',', ':'))}"
        for case in cases()
    ]
    text = json.dumps(choices())[:-1] + ', "fronts": {\n' + ",\n".join(lines) + "\n}}\n"
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Measure how much of the messages sequence parallelism hides, on links of a chosen speed."""

import time
from functools import partial

import torch
import torch.distributed as dist

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.paced import PacedTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.parallel.trainer import Recipe
from helpers.runtime.launch import launch
from tests.bench.compare import duration, in_turn, median
from tests.bench.report import Report
from tests.bench.steps import slowest

NAME = "overlap"
RANKS = 2
TOKENS = 512
ALPHA, BANDWIDTH = 100e-6, 40e6  # of the paced link: seconds a call, bytes per second
GOAL = 0.30
ROUNDS = 15
WARM_UP = 2

NONE, WEIGHTS = "messages, then products", "gradients of the weights"
WAYS = {
    "no link": {"bandwidth": float("inf"), "alpha": 0.0},
    NONE: {"overlap": False},
    WEIGHTS: {},
    "in 2 chunks": {"chunks": 2},
    "in 4 chunks": {"chunks": 4},
    "in 8 chunks": {"chunks": 8},
}


def measure(quick: bool = False) -> Report:
    print("overlap: paced links", flush=True)
    runs = launch(blocks, RANKS, device="cpu", timeout=None, rounds=2 if quick else ROUNDS)
    # the rank that hides less decides
    seconds, waited = (slowest([run[key] for run in runs], WAYS) for key in ("times", "exposed"))
    rows = []
    for name in list(WAYS)[1:]:
        busy = runs[0]["busy"][name]
        rows.append(
            {
                "way": name,
                "step": median(seconds[name]),
                "without_link": median(seconds["no link"]),
                "link": busy,
                "hidden": 1 - median(waited[name]) / busy,
            }
        )
    return report(rows)


def blocks(worker, rounds: int) -> dict:
    """By round, the seconds of a step, and those of its link that it did not hide.

    And once, the planned seconds of a step's messages.
    """
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(tp=worker.world_size))
    steps, links = {}, {}
    for name, options in WAYS.items():
        steps[name], links[name] = make(mesh, **options)
        for _ in range(WARM_UP):
            steps[name]()
    busy = {}
    for name, link in links.items():
        before = link.busy
        steps[name]()
        busy[name] = link.busy - before
    exposed = {name: [] for name in WAYS}
    times = in_turn({n: timed(s, links[n], exposed[n]) for n, s in steps.items()}, rounds)
    return {"times": times, "exposed": exposed, "busy": busy}


def timed(step, link, exposed: list[float]):
    """A call that returns the seconds of a step, and notes those that its link was not hidden."""

    def once() -> float:
        dist.barrier()
        before, began = link.exposed, time.perf_counter()
        step()
        exposed.append(link.exposed - before)
        return time.perf_counter() - began

    return once


def make(mesh, *, alpha=ALPHA, bandwidth=BANDWIDTH, **options):
    """A training step over a paced link, and the link."""
    links = []

    def transport(group):
        links.append(PacedTransport(group, alpha=alpha, bytes_per_second=bandwidth))
        return links[-1]

    config = GPTConfig.preset("10M", context=TOKENS, layers=2)
    transform = partial(sequence_parallel, transport=transport, **options)
    trainer = Recipe(transform=transform)(config, 0, mesh)
    return partial(trainer.step, random_batch(0, 1, TOKENS, config.vocab)), links[0]


def report(rows) -> Report:
    table = [["overlapped with", "step", "without link", "link busy", "hidden", "goal"]]
    for r in rows:
        goal = f"≥ {GOAL:.0%}" if "chunks" in r["way"] else ""
        times = (duration(r[key]) for key in ("step", "without_link", "link"))
        table.append([r["way"], *times, f"{r['hidden']:.0%}", goal])
    notes = (
        f"A GPT of 2 layers, width 320, {TOKENS} tokens, {RANKS} ranks, one thread each. The link "
        f"is paced: each call waits for {1e6 * ALPHA:.0f} µs and {BANDWIDTH / 1e6:.0f} MB/s, while "
        "the core is free. Hidden: the part of the link's planned time that had passed when the "
        "rank began to wait; median over rounds in turn. On a real link of one machine, messages "
        "and products share the cores, and overlap hides little."
    )
    return Report(NAME, table, notes, rows)

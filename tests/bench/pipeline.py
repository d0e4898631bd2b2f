"""Time a training step on two ranks: our pipeline engine, and torch.distributed.pipelining's."""

from functools import partial

import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.pipelining import KINDS, TorchPipelining
from helpers.parallel.recipe import Recipe
from helpers.runtime.launch import launch
from tests.bench.compare import duration, in_turn, median, ratio
from tests.bench.data_parallel import timed
from tests.bench.report import Report
from tests.bench.steps import WARM_UP, slowest

NAME = "pipeline"
PRESET = "3M"
RANKS = 2
TOKENS = 128
MICRO_BATCHES = 8
SEQUENCES = 8  # one for each micro-batch
ROUNDS = 24
GOAL = 0.95  # the maximum of our time over PyTorch's

OURS, THEIRS = "ours", "PyTorch"


def measure(quick: bool = False) -> Report:
    rows = []
    for kind in KINDS:
        print(f"pipeline: {kind}", flush=True)
        rounds = 2 if quick else ROUNDS
        runs = launch(blocks, RANKS, device="cpu", timeout=None, kind=kind, rounds=rounds)
        times = slowest(runs, (OURS, THEIRS))
        peak = {name: max(run["peak"][name] for run in runs) for name in (OURS, THEIRS)}
        rows.append(row(kind, times, peak))
    return report(rows)


def row(kind: str, times: dict, peak: dict) -> dict:
    share = ratio(times[THEIRS], times[OURS])  # our time over PyTorch's
    return {
        "schedule": kind,
        "ours": median(times[OURS]),
        "theirs": median(times[THEIRS]),
        "ratio": share.median,
        "low": share.low,
        "high": share.high,
        "goal": GOAL,
        "rounds": share.pairs,
        "our_peak": peak[OURS],
        "their_peak": peak[THEIRS],
    }


def blocks(worker, kind: str, rounds: int) -> dict:
    """Measure both on this rank: seconds per step in each round, bytes of the peak of one step."""
    torch.set_num_threads(1)
    config = GPTConfig.preset(PRESET, context=TOKENS, layers=8)
    batch = random_batch(0, SEQUENCES, TOKENS, config.vocab)
    mesh, m = make_mesh(Layout(pp=worker.world_size)), MICRO_BATCHES
    ours = Recipe(layout=mesh.layout, schedule=KINDS[kind].ours)
    contenders = {OURS: ours, THEIRS: partial(TorchPipelining, schedule=kind)}
    steps, peak = {}, {}
    for name, strategy in contenders.items():
        trained = strategy(config, 0, mesh, micro_batches=m)
        step = steps[name] = partial(trained.step, batch)
        for _ in range(WARM_UP):
            step()
        peak[name] = memory_of(step, trained.model, trained.optimizer).peak
    times = in_turn({name: timed(step) for name, step in steps.items()}, rounds)
    return {"times": times, "peak": peak}


def report(rows) -> Report:
    table = [["schedule", "ours", "PyTorch", "ratio", "goal", "our peak", "PyTorch's peak"]]
    for r in rows:
        table.append(
            [
                r["schedule"],
                duration(r["ours"]),
                duration(r["theirs"]),
                f"{r['ratio']:.2f} ({r['low']:.2f}–{r['high']:.2f})",
                f"≤ {r['goal']:.2f}",
                *(f"{r[key] / 2**20:.1f} MiB" for key in ("our_peak", "their_peak")),
            ]
        )
    notes = (
        f"GPT of {PRESET} parameters with 8 layers, float32, {RANKS} ranks, one thread each, "
        f"{SEQUENCES} sequences of {TOKENS} tokens in {MICRO_BATCHES} micro-batches, fused AdamW. "
        "Both run the same stages in the same processes, in turn, in blocks of 2 steps; both use "
        "our sums of tied gradients, clipping and update. A ratio is the median over pairs, with "
        "a 95 % bootstrap interval. The peak is of the rank with the most, counted from the "
        "storages of all tensors that a step uses."
    )
    return Report(NAME, table, notes, rows)

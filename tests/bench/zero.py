"""Time a training step on two ranks: our ZeRO, PyTorch's ZeroRedundancyOptimizer and FSDP2."""

from functools import partial

import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import SharedTransport
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.fully_shard import FullyShard
from helpers.parallel.libraries.zero_redundancy import TorchZeroRedundancy
from helpers.parallel.recipe import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from tests.bench.compare import duration, in_turn, median, ratio
from tests.bench.data_parallel import timed
from tests.bench.report import Report

NAME = "zero"
PRESET = "10M"
RANKS = 2
TOKENS = 128  # per rank and step
BUCKET_MB = 25  # of DDP, under ZeroRedundancyOptimizer
WARM_UP = 3  # steps that are not timed
ROUNDS = 24

KEPT = {"reshard_after_forward": False}
SHARED = {"transport": SharedTransport}
CONTENDERS = {
    "ZeroRedundancyOptimizer": partial(
        TorchZeroRedundancy, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
    ),
    "stage 1": Recipe(owner=Zero1),
    "stage 1, shared memory": Recipe(owner=partial(Zero1, **SHARED)),
    "fully_shard": FullyShard,
    "stage 3": Recipe(owner=Zero3),
    "stage 3, shared memory": Recipe(owner=partial(Zero3, **SHARED)),
    "fully_shard, kept": partial(FullyShard, **KEPT),
    "stage 3, kept": Recipe(owner=partial(Zero3, **KEPT)),
    "stage 3, kept, shared memory": Recipe(owner=partial(Zero3, **KEPT, **SHARED)),
}
# peer -> {ours: the maximum of our time over the peer's; None for no goal}
PEERS = {
    "ZeroRedundancyOptimizer": {"stage 1": 1.0, "stage 1, shared memory": None},
    "fully_shard": {"stage 3": 0.75, "stage 3, shared memory": 0.65},
    "fully_shard, kept": {"stage 3, kept": 0.75, "stage 3, kept, shared memory": 0.65},
}


def measure(quick: bool = False) -> Report:
    rounds = 2 if quick else ROUNDS
    runs = launch(blocks, RANKS, device="cpu", timeout=None, rounds=rounds)
    slowest = {
        name: [max(pair) for pair in zip(*(run["times"][name] for run in runs), strict=True)]
        for name in CONTENDERS
    }
    highest = {name: max(run["costs"][name]["peak"] for run in runs) for name in CONTENDERS}
    rows = []
    for peer, ours in PEERS.items():
        for name, goal in {peer: None, **ours}.items():
            costs = runs[0]["costs"][name] | {"peak": highest[name]}
            rows.append(row(name, peer, goal, slowest, costs))
    return report(rows)


def blocks(worker, rounds: int) -> dict:
    """Measure every contender on this rank: seconds per step in each round, bytes of one step."""
    torch.set_num_threads(1)
    config = GPTConfig.preset(PRESET, context=TOKENS)
    batch = random_batch(worker.rank, 1, TOKENS, config.vocab)
    mesh = make_mesh(Layout(dp=worker.world_size))
    steps, costs = {}, {}
    for name, strategy in CONTENDERS.items():
        trained = strategy(config, 0, mesh)
        step = steps[name] = partial(trained.step, batch)
        for _ in range(WARM_UP):
            step()
        with ledger() as log:
            step()
        memory = memory_of(step, trained.model, trained.optimizer)
        costs[name] = {"wire": log.wire, "kernel": log.kernel, "peak": memory.peak}
    times = in_turn({name: timed(step) for name, step in steps.items()}, rounds)
    return {"times": times, "costs": costs}


def row(name: str, peer: str, goal: float | None, slowest: dict, costs: dict) -> dict:
    share = ratio(slowest[peer], slowest[name])  # our time over the peer's
    return {
        "contender": name,
        "peer": peer,
        "median": median(slowest[name]),
        "ratio": share.median,
        "low": share.low,
        "high": share.high,
        "goal": goal or "",
        "rounds": share.pairs,
        **costs,
    }


def report(rows) -> Report:
    table = [["", "median", "over the peer", "goal", "peak", "formula", "sent, counted"]]
    for r in rows:
        peer = r["contender"] == r["peer"]
        share = "" if peer else f"{r['ratio']:.2f} ({r['low']:.2f}–{r['high']:.2f})"
        kernel = "unknown" if r["kernel"] is None else f"{r['kernel'] / 2**20:.1f} MiB"
        table.append(
            [
                r["contender"],
                duration(r["median"]),
                share,
                f"≤ {r['goal']:.2f}" if r["goal"] else "",
                *(f"{r[key] / 2**20:.1f} MiB" for key in ("peak", "wire")),
                kernel,
            ]
        )
    notes = (
        f"GPT of {PRESET} parameters, float32, {RANKS} ranks, one thread each, one sequence of "
        f"{TOKENS} tokens per rank, fused AdamW, clipping. All contenders run in the same "
        "processes, in turn, in blocks of 2 steps. A ratio is the median over pairs, with a 95 % "
        "bootstrap interval. The peer of stage 1 is ZeroRedundancyOptimizer (DDP with bucket "
        "views), of stage 3 fully_shard; kept: reshard_after_forward=False. Peak: all living "
        "tensors at one time in a step, on the rank with the most. The formula counts each call's "
        "bytes on the wire; the kernel counts what gloo really sent."
    )
    return Report(NAME, table, notes, rows)

"""Time a training step on two ranks: our data parallel and PyTorch's, in turn."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from helpers.comm.ledger import ledger
from helpers.comm.transport import GroupTransport, SharedTransport
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig, build, loss_sum
from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.launch import launch
from tests.bench.compare import duration, in_turn, median, ratio
from tests.bench.report import Report

NAME = "data_parallel"
PRESET = "10M"
RANKS = 2
TOKENS = {"computation dominates": 128, "an eighth of the tokens": 16}  # per rank and step
BUCKET_MB = 25  # set explicitly, so that the first bucket is not smaller
PEER, OURS, SHARED = "torch DDP", "DDP", "DDP, shared memory"
CONTENDERS = (PEER, OURS, SHARED, "naive", "bucketed")
WARM_UP = 3  # steps that are not timed: they fill allocators and make buckets
STEPS = 2  # per block
ROUNDS = 30

# (case, contender) -> the maximum of our time over PyTorch's time
GOALS = {
    ("computation dominates", OURS): 1.0,
    ("computation dominates", SHARED): 0.92,
    ("an eighth of the tokens", SHARED): 0.75,
}


def measure(quick: bool = False) -> Report:
    rows = []
    for case, tokens in TOKENS.items():
        print(f"data_parallel: {case}", flush=True)
        rounds = 3 if quick else ROUNDS * 128 // (tokens + 64)
        runs = launch(blocks, RANKS, device="cpu", timeout=None, tokens=tokens, rounds=rounds)
        for name in CONTENDERS:
            # the slowest rank's time counts
            times = [max(pair) for pair in zip(*(run["times"][name] for run in runs), strict=True)]
            peer = [max(pair) for pair in zip(*(run["times"][PEER] for run in runs), strict=True)]
            rows.append(row(case, name, times, peer, runs[0]["costs"][name]))
    return report(rows)


def blocks(worker, tokens: int, rounds: int) -> dict:
    """Measure every contender on this rank: seconds per step in each round, bytes of one step."""
    torch.set_num_threads(1)
    steps = {name: make(name, tokens, worker.rank) for name in CONTENDERS}
    costs = {}
    for name, (step, module, optimizer) in steps.items():
        for _ in range(WARM_UP):
            step()
        with ledger() as log:
            step()
        memory = memory_of(step, module, optimizer)
        costs[name] = {"wire": log.wire, "states": memory.model_states, "peak": memory.peak}
    times = in_turn({name: timed(step) for name, (step, *_) in steps.items()}, rounds)
    return {"times": times, "costs": costs}


def timed(step: Callable[[], None]) -> Callable[[], float]:
    def block() -> float:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        return (time.perf_counter() - began) / STEPS

    return block


def make(name: str, tokens: int, rank: int):
    """Make a contender: (training step, model, optimizer)."""
    config = GPTConfig.preset(PRESET, context=tokens)
    model = build(config, seed=0)
    batch = random_batch(rank, 1, tokens, config.vocab)
    match name:
        case "torch DDP":
            replica = torch.nn.parallel.DistributedDataParallel(
                model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
            )
        case "DDP":
            replica = DDP(model, bucket_cap_mb=BUCKET_MB)
        case "DDP, shared memory":
            replica = DDP(model, SharedTransport(), bucket_cap_mb=BUCKET_MB)
        case "naive":
            replica = NaiveDDP(model, GroupTransport())
        case "bucketed":
            replica = BucketedDDP(model, bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    # PyTorch's DDP has no `synchronize`: its backward waits.
    synchronize = getattr(replica, "synchronize", lambda: None)

    def step():
        optimizer.zero_grad()
        loss, count = loss_sum(replica(batch.tokens), batch.targets)
        (loss / count).backward()
        synchronize()
        optimizer.step()

    return step, model, optimizer


def row(case: str, name: str, times, peer, costs) -> dict:
    share = ratio(peer, times)  # our time over the peer's
    return {
        "case": case,
        "tokens": TOKENS[case],
        "contender": name,
        "median": median(times),
        "ratio": share.median,
        "low": share.low,
        "high": share.high,
        "goal": GOALS.get((case, name), ""),
        "rounds": share.pairs,
        "model_states": costs["states"],
        "peak": costs["peak"],
        "wire": costs["wire"],
    }


def report(rows) -> Report:
    heading = ["step", "", "median", "over torch DDP", "goal", "states", "peak", "sent per step"]
    table = [heading]
    for r in rows:
        share = (
            "" if r["contender"] == PEER else f"{r['ratio']:.2f} ({r['low']:.2f}–{r['high']:.2f})"
        )
        table.append(
            [
                r["case"],
                r["contender"],
                duration(r["median"]),
                share,
                f"≤ {r['goal']:.2f}" if r["goal"] else "",
                *(f"{r[key] / 2**20:.1f} MiB" for key in ("model_states", "peak", "wire")),
            ]
        )
    notes = (
        f"GPT of {PRESET} parameters, float32, {RANKS} ranks, one thread each, 128 or 16 tokens "
        f"per rank, fused AdamW. Buckets of {BUCKET_MB} MiB; gradients are views into them. All "
        f"contenders run in the same processes, in turn, in blocks of {STEPS} steps. A ratio is "
        "the median over pairs, with a 95 % bootstrap interval. States: a rank's parameters, "
        "gradients and optimizer state. With shared memory, no bytes are sent."
    )
    return Report(NAME, table, notes, rows)

"""Measure tokens per second by the number of ranks: when data parallel helps on one machine."""

from functools import partial

import torch
import torch.distributed as dist

from helpers.comm.transport import SharedTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.cluster import Cluster
from tests.bench.compare import in_turn, median, ratio, timed
from tests.bench.data_parallel import plain_loop
from tests.bench.report import Report

NAME = "scaling"
PRESET = "1M"
SEQUENCES, LENGTH = 8, 64  # weak scaling: per rank; strong scaling: all ranks together
STEPS, ROUNDS = 3, 12
ONE = "1 rank, 1 thread"
# name -> (ranks, threads per rank, sequences per rank, through shared memory)
CASES = {
    ONE: (1, 1, SEQUENCES, False),
    "1 rank, 2 threads": (1, 2, SEQUENCES, False),
    "strong, 2 ranks": (2, 1, SEQUENCES // 2, False),
    "strong, 2 ranks, shared memory": (2, 1, SEQUENCES // 2, True),
    "strong, 4 ranks": (4, 1, SEQUENCES // 4, False),
    "weak, 2 ranks": (2, 1, SEQUENCES, False),
    "weak, 2 ranks, shared memory": (2, 1, SEQUENCES, True),
    "weak, 4 ranks": (4, 1, SEQUENCES, False),
}


def measure(quick: bool = False) -> Report:
    clusters = {}
    try:
        for name, (ranks, threads, sequences, shared) in CASES.items():
            clusters[name] = Cluster(ranks, device="cpu", timeout=None)
            clusters[name].run(prepare, threads=threads, sequences=sequences, shared=shared)
        calls = {name: lambda c=cluster: max(c.run(steps)) for name, cluster in clusters.items()}
        samples = in_turn(calls, 2 if quick else ROUNDS)
    finally:
        for cluster in clusters.values():
            cluster.close()
    return report(samples)


def prepare(worker, threads: int, sequences: int, shared: bool):
    torch.set_num_threads(threads)
    config = GPTConfig.preset(PRESET, context=LENGTH)

    def wrap(model):
        several = worker.world_size > 1
        return DDP(model, SharedTransport() if shared else None) if several else model

    batch = random_batch(worker.rank, sequences, LENGTH, config.vocab)
    worker.state.step = partial(plain_loop(config, 0, None, wrap).step, batch)
    for _ in range(3):
        worker.state.step()


def steps(worker) -> float:
    """Measure the seconds per step on this rank."""
    return timed(worker.state.step, STEPS, before=dist.barrier)()


def report(samples) -> Report:
    rows = []
    for name, times in samples.items():
        ranks, threads, sequences, shared = CASES[name]
        tokens = ranks * sequences * LENGTH
        # tokens per second over those of one rank with one thread
        faster = ratio(times, samples[ONE])
        scale = tokens / (SEQUENCES * LENGTH)
        rows.append(
            {
                "case": name,
                "ranks": ranks,
                "threads": threads,
                "tokens": tokens,
                "shared": int(shared),
                "median": median(times),
                "tokens_per_second": tokens / median(times),
                "speed": scale * faster.median,
                "low": scale * faster.low,
                "high": scale * faster.high,
                "rounds": faster.pairs,
            }
        )
    table = [["", "tokens per step", "tokens/s", "over one rank"]]
    table += [
        [
            r["case"],
            f"{r['tokens']:,}",
            f"{r['tokens_per_second']:,.0f}",
            f"{r['speed']:.2f}× ({r['low']:.2f}–{r['high']:.2f})",
        ]
        for r in rows
    ]
    notes = (
        f"GPT of {PRESET} parameters, float32, fused AdamW, our DDP, over gloo unless the row "
        f"names shared memory. A step has {SEQUENCES} sequences of {LENGTH} tokens: in strong "
        "scaling for all ranks together, in weak scaling for each rank. Blocks in turn; medians of "
        "paired ratios with a 95 % bootstrap interval."
    )
    return Report(NAME, table, notes, rows)

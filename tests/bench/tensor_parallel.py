"""Time a training step on two ranks: our tensor and sequence parallelism, and DTensor's."""

from functools import partial

import torch

from helpers.comm.direct import DirectTransport
from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import SharedTransport
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.runtime.launch import launch
from tests.bench.compare import duration, in_turn, median, ratio
from tests.bench.data_parallel import timed
from tests.bench.report import Report

NAME = "tensor_parallel"
PRESET = "10M"
RANKS = 2
WARM_UP = 3  # steps that are not timed
ROUNDS = {128: 18, 512: 14}  # by tokens

DTENSOR = {"tensor": "DTensor", "sequence": "DTensor, sequence"}
OURS = {
    "tensor": ("tensor", "tensor, shared memory"),
    "sequence": (
        "sequence, inputs kept",
        "sequence, gathered again",
        "sequence, direct messages",
        "sequence, shared memory",
    ),
}
# the maximum of our time over DTensor's
GOALS = {"tensor": 0.85, "sequence, inputs kept": 0.65, "sequence, direct messages": 0.65}

CONTENDERS = {
    "DTensor": DTensorParallel,
    "DTensor, sequence": partial(DTensorParallel, sequence=True),
    "tensor": Recipe(transform=tensor_parallel),
    "tensor, shared memory": Recipe(transform=partial(tensor_parallel, transport=SharedTransport)),
    "sequence, inputs kept": Recipe(transform=partial(sequence_parallel, again=False)),
    "sequence, gathered again": Recipe(transform=sequence_parallel),
    "sequence, direct messages": Recipe(
        transform=partial(sequence_parallel, again=False, transport=DirectTransport)
    ),
    "sequence, shared memory": Recipe(
        transform=partial(sequence_parallel, again=False, transport=SharedTransport)
    ),
}


def measure(quick: bool = False) -> Report:
    rows = []
    for tokens, rounds in ROUNDS.items():
        print(f"tensor_parallel: {tokens} tokens", flush=True)
        rounds = 2 if quick else rounds
        runs = launch(blocks, RANKS, device="cpu", timeout=None, tokens=tokens, rounds=rounds)
        slowest = {
            name: [max(pair) for pair in zip(*(run["times"][name] for run in runs), strict=True)]
            for name in CONTENDERS
        }
        for kind, peer in DTENSOR.items():
            for name in (peer, *OURS[kind]):
                costs = runs[0]["costs"]
                rows.append(row(tokens, name, slowest[name], slowest[peer], costs[name]))
                rows[-1]["peak_ratio"] = costs[name]["peak"] / costs[peer]["peak"]
    return report(rows)


def blocks(worker, tokens: int, rounds: int) -> dict:
    """Measure every contender on this rank: seconds per step in each round, bytes of one step."""
    torch.set_num_threads(1)
    config = GPTConfig.preset(PRESET, context=tokens)
    batch = random_batch(0, 1, tokens, config.vocab)
    mesh = make_mesh(Layout(tp=worker.world_size))
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


def row(tokens: int, name: str, times, peer, costs) -> dict:
    share = ratio(peer, times)  # our time over the peer's
    return {
        "tokens": tokens,
        "contender": name,
        "median": median(times),
        "ratio": share.median,
        "low": share.low,
        "high": share.high,
        "goal": GOALS.get(name, ""),
        "rounds": share.pairs,
        **costs,
    }


def report(rows) -> Report:
    heading = ["tokens", "", "median", "over DTensor", "goal", "peak memory", "over DTensor"]
    table = [[*heading, "formula", "sent, counted"]]
    for r in rows:
        peer = r["contender"] in DTENSOR.values()
        share = "" if peer else f"{r['ratio']:.2f} ({r['low']:.2f}–{r['high']:.2f})"
        kernel = "unknown" if r["kernel"] is None else f"{r['kernel'] / 2**20:.1f} MiB"
        table.append(
            [
                str(r["tokens"]),
                r["contender"],
                duration(r["median"]),
                share,
                f"≤ {r['goal']:.2f}" if r["goal"] else "",
                f"{r['peak'] / 2**20:.1f} MiB",
                "" if peer else f"{r['peak_ratio']:.3f}",
                f"{r['wire'] / 2**20:.1f} MiB",
                kernel,
            ]
        )
    notes = (
        f"GPT of {PRESET} parameters, float32, {RANKS} ranks, one thread each, one sequence, fused "
        "AdamW. All contenders run in the same processes, in turn, in blocks of 2 steps. A ratio "
        "is the median over pairs, with a 95 % bootstrap interval. Peak memory is that of all "
        "tensors. The formula counts each call's bytes on the wire; the kernel counts what gloo "
        "really sent. gloo's reduce-scatter sends an all-reduce's bytes, so ours exchanges and "
        "sums. With shared memory, activations are not sent."
    )
    return Report(NAME, table, notes, rows)

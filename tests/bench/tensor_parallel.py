"""Time a training step on two ranks: our tensor and sequence parallelism, and DTensor's."""

from functools import partial

from helpers.comm.direct import DirectTransport
from helpers.comm.transport import SharedTransport
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.runtime.launch import launch
from tests.bench.compare import duration, median, ratio
from tests.bench.report import Report
from tests.bench.steps import blocks, slowest

NAME = "tensor_parallel"
PRESET = "10M"
RANKS = 2
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
        work = {"contenders": CONTENDERS, "preset": PRESET, "axis": "tp", "tokens": tokens}
        runs = launch(blocks, RANKS, device="cpu", timeout=None, rounds=rounds, **work)
        times = slowest(runs, CONTENDERS)
        for kind, peer in DTENSOR.items():
            for name in (peer, *OURS[kind]):
                costs = runs[0]["costs"]
                rows.append(row(tokens, name, times[name], times[peer], costs[name]))
                rows[-1]["peak_ratio"] = costs[name]["peak"] / costs[peer]["peak"]
    return report(rows)


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

"""Serve the same arrivals with three policies: static, continuous, and with chunked prefill.

The engine, its runner, its weights and its blocks are the same for all. Only the plans differ.
"""

import math

from helpers.inference.engine.engine import Engine
from helpers.inference.engine.metrics import Served
from helpers.inference.engine.policies import Chunked, Continuous, Policy, Static
from helpers.inference.workload import poisson
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT, build
from tests.bench.compare import duration, median, one_thread
from tests.bench.report import Report

NAME = "serving"
LLAMA = GPTConfig(vocab=256, context=512, width=256, layers=8, heads=8, hidden=688)
MOST = 32  # requests in a step, the same for all policies
BUDGET = 96  # tokens in a chunked step
SIZE = 16  # tokens in a block
BLOCKS = MOST * (64 + 256) // SIZE  # as many as a static batch of the longest requests reserves
REQUESTS = 128
SEEDS = (0, 1, 2)
LOADS = (1.2, float("inf"))  # arrivals, over what static batches can serve
STATIC, SPARING, CONTINUOUS, CHUNKED = "static", "static, no padding", "continuous", "chunked"


def policies(most: int = MOST, budget: int = BUDGET) -> dict[str, Policy]:
    return {
        STATIC: Static(most),
        SPARING: Static(most, padding=False),
        CONTINUOUS: Continuous(most),
        CHUNKED: Chunked(most, budget),
    }


def measure(quick: bool = False) -> Report:
    seeds, requests = (SEEDS[:1], 6) if quick else (SEEDS, REQUESTS)
    with one_thread():
        model = build(LLAMA, 0).eval()
        return report([row for seed in seeds for row in serve(model, seed, requests)])


def serve(model: GPT, seed: int, requests: int, blocks: int = BLOCKS, **shape) -> list[dict]:
    """The rows of one seed: first all requests at once, then as they arrive.

    Static batches are measured first. Their requests a second, with all requests waiting from the
    beginning, are the **capacity** to which the loads refer.

    Args:
        shape: of the requests, as for `poisson`.
    """
    engines = {
        name: Engine(model, policy, blocks, SIZE, fused=True) for name, policy in policies().items()
    }
    engines[STATIC].run(poisson(float("inf"), 2, seed, **shape))  # the first call is slow
    at_once = poisson(float("inf"), requests, seed, **shape)
    runs = {(float("inf"), name): engine.run(at_once) for name, engine in engines.items()}
    capacity = requests / runs[float("inf"), STATIC].seconds
    for load in LOADS:
        if load < float("inf"):
            arrivals = poisson(load * capacity, requests, seed, **shape)
            runs |= {(load, name): engine.run(arrivals) for name, engine in engines.items()}
    check_equal(runs)
    return [row_of(seed, load, name, runs, capacity) for load in LOADS for name in engines]


def check_equal(runs: dict[tuple[float, str], Served]):
    """Refuse to compare runs with other numbers of tokens: they did not do the same work."""
    lengths = {tuple(len(one.tokens) for one in served.requests) for served in runs.values()}
    if len(lengths) != 1:
        raise AssertionError("two policies generated different numbers of tokens")


def row_of(seed, load, name, runs, capacity) -> dict:
    served, static = runs[load, name], runs[load, STATIC]
    found = served.percentiles([0.5, 0.99])
    return {
        "seed": seed,
        "load": load,
        "policy": name,
        "capacity": capacity,  # requests a second
        "throughput": served.throughput,  # tokens a second
        "ratio": served.throughput / static.throughput,
        "ttft p50": found.loc["p50", "first token"],
        "ttft p99": found.loc["p99", "first token"],
        "tpot p50": found.loc["p50", "per token"],
        "tpot p99": found.loc["p99", "per token"],
        "stutter p99": found.loc["p99", "stutter"],
        "preempted": sum(one.preempted for one in served.requests),
        "steps": len(served.steps),
        "seconds": served.seconds,
    }


def report(rows) -> Report:
    head = ["arrivals", "policy", "tokens/s", "over static batches", "TTFT p50, p99"]
    table = [[*head, "TPOT p50, p99", "stutter p99"]]
    for load in dict.fromkeys(row["load"] for row in rows):
        for name in dict.fromkeys(row["policy"] for row in rows):
            own = [row for row in rows if (row["load"], row["policy"]) == (load, name)]
            middle = {key: median([row[key] for row in own]) for key in own[0] if key != "policy"}
            ratios = ", ".join(f"{row['ratio']:.2f}" for row in own)
            table.append(
                [
                    "all at once" if math.isinf(load) else f"{load:g} × capacity",
                    name,
                    f"{middle['throughput']:.0f}",
                    "" if name == STATIC else ratios,
                    f"{duration(middle['ttft p50'])}, {duration(middle['ttft p99'])}",
                    f"{duration(middle['tpot p50'])}, {duration(middle['tpot p99'])}",
                    duration(middle["stutter p99"]),
                ]
            )
    count = len({row["seed"] for row in rows})
    notes = (
        f"Llama's shape with 8 layers of width 256, float32, one thread; {MOST} requests in a step "
        f"at most, {BLOCKS} blocks of {SIZE} tokens for all policies. Prompts of 16 to 64 tokens, "
        "geometric numbers of new tokens with mean 64, at most 256; Poisson arrivals. A static "
        f"batch takes up to {MOST} of the requests that wait, reserves blocks for the longest in "
        "each row, and ends when its longest ends; until then it computes the rows of requests "
        "that have ended, as a tensor of fixed shape does. 'No padding' spares these rows. A "
        f"chunked step has at most {BUDGET} tokens. Capacity: the requests a second of static "
        "batches if all requests wait from the beginning. Throughput: generated tokens over the "
        "time from the first arrival to the last end. At 1.2 × capacity no policy can serve much "
        "more than 1.2 times as many requests as static batches, because no more arrive; 'all at "
        "once' compares the capacities themselves. Ratios: one for each of "
        f"{count} seeds; other numbers: the median over the seeds. TTFT: time to first token. TPOT:"
        " time per output token. Stutter: the longest time between two tokens of a request."
    )
    return Report(NAME, table, notes, rows)

"""Time a training step on two ranks: our tensor and sequence parallelism, and DTensor's."""

from functools import partial

from helpers.comm.transport import DirectTransport, SharedTransport
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from tests.bench.compare import duration
from tests.bench.report import Report, goal_of, mib, share_of
from tests.bench.steps import NOTES, RANKS, measured, row

NAME = "tensor_parallel"
PRESET = "10M"
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
        work = {"preset": PRESET, "axis": "tp", "tokens": tokens}
        times, costs = measured(CONTENDERS, 2 if quick else rounds, **work)
        rows += rows_of(tokens, times, costs)
    return report(rows)


def rows_of(tokens: int, times: dict, costs: dict) -> list[dict]:
    rows = []
    for kind, peer in DTENSOR.items():
        for name in (peer, *OURS[kind]):
            rows.append(row(name, peer, GOALS.get(name), times, costs[name]))
            rows[-1] |= {"peak_ratio": costs[name]["peak"] / costs[peer]["peak"]}
    return [{"tokens": tokens, **one} for one in rows]


def report(rows) -> Report:
    heading = ["tokens", "", "median", "over DTensor", "goal", "peak memory", "over DTensor"]
    table = [[*heading, "formula", "sent, counted"]]
    for r in rows:
        peer = r["contender"] in DTENSOR.values()
        table.append(
            [
                str(r["tokens"]),
                r["contender"],
                duration(r["median"]),
                "" if peer else share_of(r),
                goal_of(r),
                mib(r["peak"]),
                "" if peer else f"{r['peak_ratio']:.3f}",
                *(mib(r[key]) for key in ("wire", "kernel")),
            ]
        )
    notes = (
        f"GPT of {PRESET} parameters, float32, {RANKS} ranks, one thread each, one sequence, fused "
        f"AdamW. {NOTES}Peak memory is that of all tensors, on the rank with the most. The formula "
        "counts each call's bytes on the wire; the kernel counts what gloo really sent. gloo's "
        "reduce-scatter sends an all-reduce's bytes, so ours exchanges and sums. With shared "
        "memory, activations are not sent."
    )
    return Report(NAME, table, notes, rows)

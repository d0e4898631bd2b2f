"""Time a training step on two ranks: our ZeRO, PyTorch's ZeroRedundancyOptimizer and FSDP2."""

from functools import partial

from helpers.comm.transport import SharedTransport
from helpers.parallel.libraries.data_parallel import TorchZeroRedundancy
from helpers.parallel.libraries.fully_shard import FullyShard
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage3 import Zero3
from tests.bench.compare import duration
from tests.bench.report import Report, goal_of, mib, share_of
from tests.bench.steps import NOTES, RANKS, measured, row

NAME = "zero"
PRESET = "10M"
TOKENS = 128  # per rank and step
BUCKET_MB = 25  # of DDP, under ZeroRedundancyOptimizer
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
    work = {"preset": PRESET, "axis": "dp", "tokens": TOKENS}
    times, costs = measured(CONTENDERS, 2 if quick else ROUNDS, **work)
    return report(rows_of(times, costs))


def rows_of(times: dict, costs: dict) -> list[dict]:
    return [
        {"peer": peer, **row(name, peer, goal, times, costs[name])}
        for peer, ours in PEERS.items()
        for name, goal in {peer: None, **ours}.items()
    ]


def report(rows) -> Report:
    table = [["", "median", "over the peer", "goal", "peak", "formula", "sent, counted"]]
    for r in rows:
        table.append(
            [
                r["contender"],
                duration(r["median"]),
                "" if r["contender"] == r["peer"] else share_of(r),
                goal_of(r),
                *(mib(r[key]) for key in ("peak", "wire", "kernel")),
            ]
        )
    notes = (
        f"GPT of {PRESET} parameters, float32, {RANKS} ranks, one thread each, one sequence of "
        f"{TOKENS} tokens per rank, fused AdamW, clipping. {NOTES}The peer of stage 1 is "
        "ZeroRedundancyOptimizer (DDP with bucket views), of stage 3 fully_shard; kept: "
        "reshard_after_forward=False. Peak: all living tensors at one time in a step, on the rank "
        "with the most. The formula counts each call's bytes on the wire; the kernel counts what "
        "gloo really sent."
    )
    return Report(NAME, table, notes, rows)

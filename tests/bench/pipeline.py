"""Time a training step on two ranks: our pipeline engine, and torch.distributed.pipelining's."""

from functools import partial

from helpers.comm.mesh import Layout
from helpers.parallel.libraries.pipelining import KINDS, TorchPipelining
from helpers.parallel.trainer import Recipe
from tests.bench.compare import duration
from tests.bench.report import Report, goal_of, mib, share_of
from tests.bench.steps import NOTES, RANKS, measured
from tests.bench.steps import row as row_of

NAME = "pipeline"
PRESET = "3M"
TOKENS = 128
MICRO_BATCHES = 8
SEQUENCES = 8  # one for each micro-batch
ROUNDS = 24
GOAL = 0.95  # the maximum of our time over PyTorch's

OURS, THEIRS = "ours", "PyTorch"


def measure(quick: bool = False) -> Report:
    rows = []
    work = {"preset": PRESET, "axis": "pp", "tokens": TOKENS, "sequences": SEQUENCES, "layers": 8}
    for kind in KINDS:
        print(f"pipeline: {kind}", flush=True)
        ours = Recipe(layout=Layout(pp=RANKS), schedule=KINDS[kind].ours)
        contenders = {OURS: ours, THEIRS: partial(TorchPipelining, schedule=kind)}
        contenders = {n: partial(one, micro_batches=MICRO_BATCHES) for n, one in contenders.items()}
        times, costs = measured(contenders, 2 if quick else ROUNDS, **work)
        rows.append(row(kind, times, costs))
    return report(rows)


def row(kind: str, times: dict, costs: dict) -> dict:
    ours, theirs = (row_of(name, THEIRS, GOAL, times, costs[name]) for name in (OURS, THEIRS))
    return {
        "schedule": kind,
        "ours": ours["median"],
        "theirs": theirs["median"],
        **{key: ours[key] for key in ("ratio", "low", "high", "goal", "rounds")},
        "our_peak": ours["peak"],
        "their_peak": theirs["peak"],
    }


def report(rows) -> Report:
    table = [["schedule", "ours", "PyTorch", "ratio", "goal", "our peak", "PyTorch's peak"]]
    for r in rows:
        times = (duration(r[key]) for key in ("ours", "theirs"))
        peaks = (mib(r[key]) for key in ("our_peak", "their_peak"))
        table.append([r["schedule"], *times, share_of(r), goal_of(r), *peaks])
    notes = (
        f"GPT of {PRESET} parameters with 8 layers, float32, {RANKS} ranks, one thread each, "
        f"{SEQUENCES} sequences of {TOKENS} tokens in {MICRO_BATCHES} micro-batches, fused AdamW. "
        f"{NOTES}Both run the same stages, and use our sums of tied gradients, clipping and "
        "update. The peak is of the rank with the most, counted from the storages of all tensors "
        "that a step uses."
    )
    return Report(NAME, table, notes, rows)

"""Train dense and sparse models with equal FLOPs: the losses of `helpers.scaling.experts`."""

from helpers.models.counts import parameters
from helpers.scaling.design import BATCH, LENGTH
from helpers.scaling.experts import BUDGET, KINDS, compared, config_of, curves, step_flops
from helpers.scaling.spend import HELD_OUT
from tests.bench.report import Report

NAME = "experts"
PEER = "dense"


def measure(quick: bool = False) -> Report:
    return report(curves(seeds=2, budget=BUDGET / 60) if quick else curves())


def report(rows) -> Report:
    found = compared(rows)
    table = [["", "parameters", "a token's", "FLOPs a step", "nats a byte", f"less {PEER}'s"]]
    table[0] += ["busiest expert", "dropped"]
    for kind, (loss, mean, half) in found.items():
        count = parameters(config_of(kind))
        last = [row for row in rows if row["kind"] == kind and row["loads"]]
        sizes = [f"{count.total:,}", f"{count.active:,}", f"{step_flops(kind) / 1e6:,.0f} million"]
        less = "" if kind == PEER else f"{mean:+.3f} ± {half:.3f}"
        busiest, dropped = "", ""
        if last:
            shares = [float(share) for row in last for share in row["loads"].split()]
            busiest = f"{max(shares) * KINDS[kind].count:.2f} x the mean"
            dropped = f"{100 * sum(float(row['dropped']) for row in last) / len(last):.1f} %"
        table.append([kind, *sizes, f"{loss:.3f}", less, busiest, dropped])
    seeds, budget = len({row["seed"] for row in rows}), max(row["flops"] for row in rows)
    notes = (
        f"A GPT on bytes, {BATCH * LENGTH:,} tokens a step, and {budget:.2g} FLOPs for each run. "
        f"The loss is a mean over {HELD_OUT} held-out sequences and {seeds} seeds; differences are "
        "of pairs with the same seed, with a 95 % interval (Student's t). The busiest expert is "
        "that of all blocks and seeds, on the held-out text."
    )
    return Report(NAME, table, notes, rows)

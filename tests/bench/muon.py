"""Train AdamW and Muon with equal FLOPs: the losses of `helpers.scaling.optimizers`."""

from helpers.models.counts import parameters
from helpers.scaling.design import BATCH, LENGTH
from helpers.scaling.optimizers import BUDGET, MODEL, compared, curves, step_flops
from helpers.scaling.spend import HELD_OUT
from tests.bench.report import Report

NAME = "muon"
PEER = "AdamW"


def measure(quick: bool = False) -> Report:
    return report(curves(seeds=2, budget=BUDGET / 50) if quick else curves())


def report(rows) -> Report:
    found = compared(rows)
    table = [["", "best rate", "of", "steps", "FLOPs a step", "nats a byte", f"less {PEER}'s"]]
    for rule, rate in found.rates.items():
        steps = max(row["step"] for row in rows if (row["rule"], row["rate"]) == (rule, rate))
        tried = sorted({row["rate"] for row in rows if row["rule"] == rule})
        less = "" if rule == PEER else f"{found.mean:+.3f} ± {found.half:.3f}"
        each = f"{step_flops(rule) / 1e6:,.0f} million"
        numbers = [f"{rate:g}", ", ".join(f"{r:g}" for r in tried), str(steps), each]
        table.append([rule, *numbers, f"{found.losses[rule]:.3f}", less])
    seeds, budget = len({row["seed"] for row in rows}), max(row["flops"] for row in rows)
    notes = (
        f"A GPT on bytes with {parameters(MODEL).total:,} parameters, {BATCH * LENGTH:,} tokens a "
        f"step, and {budget:.2g} FLOPs for each run: forward, backward and Muon's matrix products. "
        f"The loss is a mean over {HELD_OUT} held-out sequences and {seeds} seeds. The last column "
        "has pairs with the same seed, and a 95 % interval (Student's t)."
    )
    return Report(NAME, table, notes, rows)

"""Time how long a notebook waits for a function on ranks: `launch`, `Cluster`, and their peers."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack

from tests.bench.compare import duration, in_turn, median, ratio
from tests.bench.contenders import (
    ACCELERATE,
    ACCELERATE_EAGER,
    CLUSTER,
    FORK_SERVER,
    GIVEN,
    LAUNCH,
    NO_BYTECODE,
    SPAWN,
    Contender,
)
from tests.bench.kernel import Kernel
from tests.bench.report import Report

NAME = "starting"
CONTENDERS = [LAUNCH, NO_BYTECODE, CLUSTER, ACCELERATE, ACCELERATE_EAGER, FORK_SERVER, SPAWN]
PAUSE = 5.0  # seconds: a person reads, then runs the next cell
SETTLE = 0.5  # seconds before a later call: `launch` forks spare ranks after each of its calls
PATIENCE = 25.0  # seconds: a call that takes longer counts as a hang

FIRST = "first call, straight after the imports"
PAUSED = f"first call, {PAUSE:.0f} s after the imports"
IMPORTS = "the cell of imports"
LATER = {"all_reduce": "later call: an all-reduce", "adamw": "later call: a step of AdamW"}
TORCH = "`import torch` alone, in a fresh Python"

# (case, ranks): the goals for `launch`, as shares of a peer's time
GOALS = {
    (LATER["all_reduce"], 2): {ACCELERATE.name: 0.2, FORK_SERVER.name: 0.8},
    (LATER["all_reduce"], 4): {ACCELERATE.name: 0.3, FORK_SERVER.name: 0.8},
    (FIRST, 2): {ACCELERATE.name: 0.35},
    (FIRST, 4): {ACCELERATE.name: 0.5},
}
CLUSTER_GOALS = {2: 0.005, 4: 0.008}  # seconds of its all-reduce

Key = tuple[str, int]  # (case, ranks)
Samples = dict[Key, dict[str, list[float | None]]]


def measure(quick: bool = False) -> Report:
    samples: Samples = {(TORCH, 1): {"python": [import_torch() for _ in range(2 if quick else 5)]}}
    for ranks in (2, 4):
        print(f"starting: {ranks} ranks, fresh kernels", flush=True)
        samples |= first_calls(ranks, rounds=1 if quick else 3)
        print(f"starting: {ranks} ranks, later calls", flush=True)
        samples |= later_calls(ranks, rounds=3 if quick else 6)
    return report(samples)


def import_torch() -> float:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env=environ)
    return time.perf_counter() - began


def first_calls(
    ranks: int, rounds: int, contenders=(LAUNCH, NO_BYTECODE, ACCELERATE, SPAWN)
) -> Samples:
    """Time first calls, each in a fresh kernel."""
    samples: Samples = {(IMPORTS, ranks): {c.name: [] for c in contenders}}

    def fresh(contender: Contender, pause: float) -> float | None:
        with Kernel(contender.bytecode) as kernel:
            imports = kernel.time(contender.imports)
            if not pause:
                samples[IMPORTS, ranks][contender.name].append(imports)
            kernel.time(contender.define)
            time.sleep(pause)
            return kernel.time(contender.cell("all_reduce", ranks), PATIENCE)

    for case, pause in ((FIRST, 0.0), (PAUSED, PAUSE)):
        # A pause helps only `launch`, whose server prepares in the background.
        taking_part = contenders if not pause else contenders[:1]
        samples[case, ranks] = in_turn(
            {c.name: lambda c=c, pause=pause: fresh(c, pause) for c in taking_part}, rounds
        )
    return samples


def later_calls(ranks: int, rounds: int, contenders=CONTENDERS) -> Samples:
    """Time later calls: one kernel per launcher, all alive together, one call of each per round."""
    with ExitStack() as stack:
        desks = {c.name: stack.enter_context(Desk(c, ranks)) for c in contenders}
        samples: Samples = {}
        for fn, case in LATER.items():
            for desk in desks.values():
                desk.call(fn)  # not counted
            samples[case, ranks] = in_turn(
                {name: lambda d=desk, fn=fn: d.call(fn) for name, desk in desks.items()}, rounds
            )
    return samples


class Desk:
    """A launcher in a kernel. After a hang, the kernel is replaced."""

    def __init__(self, contender: Contender, ranks: int):
        self.contender, self.ranks = contender, ranks

    def __enter__(self):
        self.kernel = Kernel(self.contender.bytecode)
        warm = self.contender.warm.replace("RANKS", str(self.ranks))
        for cell in (self.contender.imports, self.contender.define, warm):
            self.kernel.time(cell)
        return self

    def __exit__(self, *_):
        self.kernel.close()

    def call(self, fn: str) -> float | None:
        """Time a call in the kernel; None if it did not end, or if a peer's ranks crashed."""
        time.sleep(SETTLE)
        try:
            seconds = self.kernel.time(self.contender.cell(fn, self.ranks), PATIENCE)
        except RuntimeError:
            if self.contender in (LAUNCH, CLUSTER):
                raise
            seconds = None
        if seconds is None:
            self.__exit__()
            self.__enter__()
        return seconds


def report(samples: Samples) -> Report:
    names = [c.name for c in CONTENDERS]
    table = [["median", "ranks", *(f"`{name}`" for name in names)]]
    rows = []
    for (case, ranks), by_name in samples.items():
        if case == TORCH:
            continue
        cells = []
        for name in names:
            if name not in by_name:
                cells.append("")
                continue
            times = by_name[name]
            against = ratio(by_name["launch"], times) if name != "launch" else None
            cells.append(cell_text(times, against if name != CLUSTER.name else None))
            goal = GOALS.get((case, ranks), {}).get(name)
            if goal and against:
                cells[-1] += f", {1 / against.median:.2f} of it (goal {goal})"
            if name == CLUSTER.name and case == LATER["all_reduce"]:
                goal = CLUSTER_GOALS[ranks]
                cells[-1] += f" (goal {duration(goal)})"
            rows.append(
                {
                    "case": case,
                    "ranks": ranks,
                    "launcher": name,
                    "median": f"{median(times) or float('nan'):.5f}",
                    "ratio": f"{against.median:.3f}" if against else "",
                    "low": f"{against.low:.3f}" if against else "",
                    "high": f"{against.high:.3f}" if against else "",
                    "goal": goal or "",
                    "hung": times.count(None),
                    "seconds": " ".join(f"{t:.5f}" for t in times if t is not None),
                }
            )
        table.append([case, str(ranks), *cells])
    torch_alone = median(samples[TORCH, 1]["python"]) if (TORCH, 1) in samples else None
    notes = (
        "Time within the cell, including the process group. In brackets: the time over `launch`'s "
        "time (median of the pairs, 95 % interval); beside a goal the inverse, the share of the "
        f"peer's time that `launch` takes. A first call is the first in a fresh kernel.\n{GIVEN}"
    )
    if torch_alone:
        notes += (
            f"\n{TORCH}, took {duration(torch_alone)}. Each process that is not forked needs this "
            "time first: `launch`'s server, which the import cell starts, and each rank of "
            "`mp.spawn`."
        )
    return Report(NAME, table, notes, rows)


def cell_text(times, against) -> str:
    text = duration(median(times))
    if against:
        text += f" [{against}]"
    if times.count(None):
        text += f", hung or crashed {times.count(None)} of {len(times)} times"
    return text

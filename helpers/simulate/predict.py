"""Predict iteration times of Megatron-DeepSpeed on A100s, from three measured ones.

    python -m helpers.simulate.predict ROWS.csv --calibrate THREE.csv

Both files have the columns of COLUMNS, and perhaps others. `iteration_ms` is needed in THREE.csv.
The rows go to standard output as CSV, with a column `predicted_ms`. Standard error has the factors,
the error over the rows with a time, and a reason for each row that cannot be predicted.

`published` has the 793 rows of vTrain (Bang et al. 2024, "vTrain: A Simulation Framework for
Evaluating Cost-Effective and Compute-Optimal Large Language Model Training", MICRO): 8 A100s a node
with 800 Gbit/s between nodes, fp16, full recomputation, 1F1B, no overlap. From
github.com/VIA-Research/vTrain, MIT licence, Copyright 2024 VIA Research Group, KAIST.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from helpers.comm.layout import Layout
from helpers.models.shape import GPTShape
from helpers.simulate.calibrate import calibrate
from helpers.simulate.kernels import Rates
from helpers.simulate.plan import Plan, check
from helpers.simulate.step_time import step_time
from helpers.simulate.topology import DGX_A100

COLUMNS = (
    "gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "sequence", "tp", "dp", "pp"
)  # fmt: skip
TIME, PREDICTED = "iteration_ms", "predicted_ms"
CLUSTER = replace(DGX_A100, gpus_per_card=2)  # 4 cards of 200 Gbit/s a node
MEGATRON = {"vocab": 51_200, "norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
MEGATRON |= {"attention": "explicit", "dropout": 0.1, "recompute": "full"}

Row = Mapping[str, str]


def whole(row: Row, column: str) -> int:
    text = (row.get(column) or "").strip()
    value = float(text) if text.replace(".", "", 1).isdigit() else 0.0
    if value < 1 or value % 1:
        raise ValueError(f"{column} must be a positive whole number, not {text!r}")
    return int(value)


def measured(row: Row) -> float | None:
    """The row's seconds, or None without a time."""
    text = (row.get(TIME) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{TIME} must be a positive number, not {text!r}")
    return value / 1e3


def predictor(row: Row) -> Callable[[Rates], float]:
    """Seconds of the row's step, as a function of the rates.

    Raises:
        ValueError: no such model, or the plan does not fit it.
    """
    at = {column: whole(row, column) for column in COLUMNS}
    shape = {"width": at["hidden"], "heads": at["heads"], "layers": at["layers"]}
    config = GPTShape(context=at["sequence"], **shape, **MEGATRON)
    plan = Plan(
        layout=Layout(pp=at["pp"], dp=at["dp"], tp=at["tp"]),  # Megatron's order of the ranks
        sequences=at["global_batch"],
        tokens=at["sequence"],
        micro=at["micro_batch"],
    )
    cluster = CLUSTER.of(at["gpus"])
    check(config, plan, cluster)
    return lambda rates: step_time(config, plan, cluster, rates).seconds


def rates_from(rows: list[Row], log=print) -> Rates:
    """Calibrate on the usable rows; a ValueError if there is none."""
    timed = []
    for number, row in enumerate(rows, 1):
        try:
            seconds = measured(row)
            if seconds is None:
                raise ValueError(f"{TIME} is empty")
            timed.append((predictor(row), seconds))
        except ValueError as why:
            log(f"calibration row {number} is not used: {why}")
    if not timed:
        raise ValueError("no calibration row can be used: give rows with a plan and a time")
    rates, factors = calibrate(timed)
    shown = ", ".join(f"{name} {value:.3f}" for name, value in factors.items())
    log(f"times as long as the defaults, by {len(timed)} rows: {shown}")
    return rates


def read(path: str) -> tuple[list[str], list[Row]]:
    """The columns and the rows of a file; a ValueError if it cannot be read or lacks either."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as why:
        raise ValueError(f"{path} cannot be read: {why}") from None
    if missing := [name for name in COLUMNS if name not in columns]:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
    if not rows:
        raise ValueError(f"{path} has no rows below its columns")
    return columns, rows


def published(name: str) -> list[Row]:
    """vTrain's measured rows: "single", 720 of a small model on 2 to 8 GPUs; "multi", 73 of models
    with 3.6 and 39.1 billion parameters on 64 to 512."""
    return read(str(Path(__file__).with_name(f"vtrain_{name}.csv")))[1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m helpers.simulate.predict", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("rows", metavar="ROWS.csv")
    parser.add_argument("--calibrate", required=True, metavar="THREE.csv")
    given = parser.parse_args(arguments)
    log = partial(print, file=sys.stderr)
    try:
        columns, rows = read(given.rows)
        rates = rates_from(read(given.calibrate)[1], log)
    except ValueError as why:
        log(f"predict: {why}")
        return 2
    fields = [*columns, *([] if PREDICTED in columns else [PREDICTED])]
    out = csv.DictWriter(sys.stdout, fields, extrasaction="ignore", lineterminator="\n")
    out.writeheader()
    errors = {}
    for number, row in enumerate(rows, 1):
        row[PREDICTED] = ""
        try:
            seconds = predictor(row)(rates)
            row[PREDICTED] = f"{seconds * 1e3:.3f}"
            if (known := measured(row)) is not None:
                errors[number] = abs(seconds / known - 1)
        except ValueError as why:
            log(f"row {number}: {why}")
        out.writerow(row)
    if errors:
        worst = max(errors, key=errors.get)
        mean = sum(errors.values()) / len(errors)
        log(
            f"mean error {mean:.2%} over {len(errors)} rows; the worst is row {worst}, "
            f"{errors[worst]:.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

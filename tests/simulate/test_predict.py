"""Predicted iteration times beside measured ones, and the command line.

vtrain_single.csv and vtrain_multi.csv: 793 iteration times of Megatron-DeepSpeed on A100s, from
Bang et al. 2024, "vTrain" (MICRO), github.com/VIA-Research/vTrain, data/ground_truth_{single,multi}
.csv, MIT licence, Copyright 2024 VIA Research Group, KAIST. The rows with hidden size 1,024, and
those of the models with 3.6 and 39.1 billion parameters. megatron_table_1.csv: Narayanan et al.
2021, arXiv:2104.04473, table 1, with FLOPs counted by its equation 3.
"""

import csv
import math
import random
import re
import statistics
from functools import cache
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.comm.layout import Layout
from helpers.models.shape import GPTShape
from helpers.simulate import predict
from helpers.simulate.calibrate import calibrate
from helpers.simulate.kernels import Rates
from helpers.simulate.plan import Plan
from helpers.simulate.predict import CLUSTER, COLUMNS, MEGATRON, main, measured, predictor
from helpers.simulate.step_time import step_time
from helpers.simulate.topology import DGX_A100

HERE = Path(__file__).parent
GPU_BYTES = 80e9


@cache
def table(name):
    folder = HERE if (HERE / name).exists() else Path(predict.__file__).parent
    with (folder / name).open(newline="") as file:
        return tuple(csv.DictReader(file))


def timed(rows):
    return [(predictor(row), measured(row)) for row in rows]


def error(rows, rates):
    return statistics.mean(abs(of(rates) / seconds - 1) for of, seconds in rows)


def errors(name, seed, calibrations, judged):
    """Errors after random three-row calibrations, over random other rows."""
    dice, rows, found = random.Random(seed), table(name), []
    for _ in range(calibrations):
        drawn = dice.sample(rows, 3 + judged)
        found.append(error(timed(drawn[3:]), calibrate(timed(drawn[:3]))[0]))
    return found


@pytest.mark.parametrize(
    ("name", "mean", "worst"), [("vtrain_single.csv", 0.08, 0.12), ("vtrain_multi.csv", 0.10, 0.14)]
)
def test_errors_after_three_rows(name, mean, worst):
    found = errors(name, 7, 12, 30)
    assert statistics.mean(found) < mean
    assert max(found) < worst


def megatron(row):
    """The published row, with the micro-batch and the chunks that are fastest and fit."""
    at = {name: int(value) for name, value in row.items()}
    width, layers, p, t, batch = (
        at[name] for name in ("hidden", "layers", "pp", "tp", "global_batch")
    )
    d = at["gpus"] // (p * t)
    config = GPTShape(context=2048, width=width, heads=at["heads"], layers=layers, **MEGATRON)
    cluster = DGX_A100.of(at["gpus"])
    extra = 1 + 2048 / (6 * width) + 51_200 / (16 * layers * width)
    flops = 96 * batch * 2048 * layers * width**2 * extra  # equation 3
    plans = [
        Plan(layout=Layout(pp=p, dp=d, tp=t), sequences=batch, tokens=2048, micro=b, chunks=v)
        for b in (1, 2, 4, 8, 16)
        for v in range(1, layers // p + 1 if p > 1 else 2)
        if batch % (d * b) == 0 and layers % (p * v) == 0 and (v == 1 or batch // (d * b) % p == 0)
    ]
    tried = {plan: step_time(config, plan, cluster) for plan in plans}
    fits = [plan for plan, step in tried.items() if step.peak_bytes < GPU_BYTES]
    best = min(fits, key=lambda plan: tried[plan].seconds)
    seconds = flops / at["gpus"] / (at["tflops"] * 1e12)
    return lambda rates: step_time(config, best, cluster, rates).seconds, seconds


def test_megatron_table_1_after_three_rows():
    """All 120 calibrations on three of the ten rows; the other seven are judged."""
    rows, found = [megatron(row) for row in table("megatron_table_1.csv")], []
    for three in combinations(range(10), 3):
        rates, _ = calibrate([rows[k] for k in three])
        found.append(error([rows[k] for k in range(10) if k not in three], rates))
    assert len(found) == 120
    assert statistics.mean(found) < 0.04


@pytest.mark.parametrize(
    ("name", "groups", "regret"), [("vtrain_single.csv", 72, 0.05), ("vtrain_multi.csv", 2, 0.01)]
)
def test_the_predicted_best_plan_is_nearly_the_best(name, groups, regret):
    """For each model, number of GPUs and batch: the measured time of the plan that is predicted to
    be the fastest, over the least measured time."""
    found = {}
    for row in table(name):
        key = tuple(row[column] for column in ("hidden", "layers", "gpus", "global_batch"))
        found.setdefault(key, []).append((predictor(row)(Rates()), measured(row)))
    regrets = [min(plans)[1] / min(m for _, m in plans) - 1 for plans in found.values()]
    assert len(regrets) == groups
    assert statistics.mean(regrets) < regret
    assert max(regrets) < 0.2


def write(path, rows, columns=(*COLUMNS, "iteration_ms")):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def run(tmp_path, rows, three, capsys, **columns):
    given = write(tmp_path / "rows.csv", rows, **columns), write(tmp_path / "three.csv", three)
    code = main([given[0], "--calibrate", given[1]])
    out, err = capsys.readouterr()
    return code, list(csv.DictReader(out.splitlines())), err


def test_the_command(tmp_path, capsys):
    rows = [dict(row) for row in table("vtrain_single.csv")[:7]]
    rows[0]["gpus"] += " "
    rows[1]["iteration_ms"] = " "
    rows[2]["hidden"] = "many"
    rows[3]["tp"] = "3"
    rows[4]["iteration_ms"], rows[6]["iteration_ms"] = "soon", "inf"
    code, out, err = run(tmp_path, rows, table("vtrain_single.csv")[100:103], capsys)
    assert code == 0
    assert [set(row) for row in out] == [{*COLUMNS, "iteration_ms", "predicted_ms"}] * 7
    cells = [row["predicted_ms"] for row in out]
    assert cells[2] == cells[3] == ""
    for k in (0, 1, 4, 5):
        assert float(cells[k]) > 0
    assert float(cells[0]) == pytest.approx(372, rel=0.25)
    assert not re.search("row [12]:", err)
    assert "row 3: hidden must be a positive whole number, not 'many'" in err
    assert "row 4: Layout(pp=2, dp=1, tp=3) is not for 8 GPUs" in err.replace("dp=2", "dp=1")
    for row, time in ((5, "soon"), (7, "inf")):
        assert f"row {row}: iteration_ms must be a positive number, not '{time}'" in err
    known = {k: float(rows[k]["iteration_ms"]) for k in (0, 5)}
    mean = statistics.mean(abs(float(cells[k]) / ms - 1) for k, ms in known.items())
    assert f"mean error {mean:.2%} over 2 rows" in err


def test_the_ranks_are_in_megatron_s_order(monkeypatch):
    """github.com/NVIDIA/Megatron-LM, core/parallel_state.py: order "tp-cp-ep-dp-pp", by which tp
    has neighbours and pp is the farthest."""
    row = table("vtrain_single.csv")[0] | {"gpus": "16", "tp": "2", "dp": "4", "pp": "2"}
    monkeypatch.setattr(predict, "step_time", lambda _, plan, *__: SimpleNamespace(seconds=plan))
    layout = predictor(row | {"micro_batch": "2"})(Rates()).layout
    groups = [layout.groups(axis)[0] for axis in ("tp", "dp", "pp")]
    assert groups == [[0, 1], [0, 2, 4, 6], [0, 8]]


def test_rows_alike_and_rows_that_cannot_be_used(tmp_path, capsys):
    """Three times the same row calibrates; so does one row beside two without a time."""
    row = table("vtrain_single.csv")[0]
    for three in ([row] * 3, [row, row | {"iteration_ms": ""}, row | {"dp": "0"}]):
        code, out, err = run(tmp_path, [row], three, capsys)
        assert code == 0
        assert float(out[0]["predicted_ms"]) == pytest.approx(float(row["iteration_ms"]), rel=0.1)
    assert "calibration row 2 is not used: iteration_ms is empty" in err
    assert "calibration row 3 is not used: dp must be" in err


def test_a_table_as_spreadsheets_write_it(tmp_path, capsys):
    """It has a byte order mark, spaces around the words, and rows that end early."""
    row, path = table("vtrain_single.csv")[0], tmp_path / "rows.csv"
    rows = [[*COLUMNS, "iteration_ms"], row.values(), [row[column] for column in COLUMNS], ["8"]]
    path.write_text("\n".join(map(" , ".join, rows)), encoding="utf-8-sig")
    assert main([str(path), "--calibrate", str(path)]) == 0
    err = capsys.readouterr().err
    assert "calibration row 2 is not used: iteration_ms is empty" in err
    assert "\nrow 3: global_batch must be a positive whole number, not ''" in err
    assert "over 1 row" in err


@pytest.mark.parametrize(
    ("rows", "three", "columns", "message"),
    [
        (1, 0, {}, "three.csv has no rows"),
        (0, 1, {}, "rows.csv has no rows"),
        (1, 1, {"columns": COLUMNS[:-2]}, "rows.csv lacks the columns dp, pp"),
    ],
)
def test_refused_files(tmp_path, capsys, rows, three, columns, message):
    row = table("vtrain_single.csv")[0]
    code, out, err = run(tmp_path, [row] * rows, [row] * three, capsys, **columns)
    assert code == 2
    assert not out
    assert message in err


def test_no_usable_calibration_and_no_file(tmp_path, capsys):
    row = table("vtrain_single.csv")[0]
    code, _, err = run(tmp_path, [row], [row | {"iteration_ms": ""}], capsys)
    assert code == 2
    assert "no calibration row can be used" in err
    assert main(["nowhere.csv", "--calibrate", "nowhere.csv"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_cluster_has_800_gigabits_between_nodes():
    cards = CLUSTER.gpus_per_node / CLUSTER.gpus_per_card
    assert cards * 200 == 800
    assert CLUSTER.rail.bytes_per_second == pytest.approx(200e9 / 8, rel=0.05)


def test_calibration_moves_towards_the_rows_and_not_all_the_way():
    """Rows twice as slow as predicted: the factors grow, less than twice; a GPU-bound row moves
    the GPU's factor, and a launch-bound row the host's."""
    big, small = table("vtrain_multi.csv")[0], table("vtrain_single.csv")[6]
    for row, most in ((big, "compute"), (small | {"micro_batch": "1"}, "host")):
        of = predictor(row)
        _, factors = calibrate([(of, 1.3 * of(Rates()))] * 3)
        assert max(factors, key=factors.get) == most
        assert 1.05 < factors[most] < 1.25
        _, free = calibrate([(of, 1.3 * of(Rates()))] * 3, prior=(9, 9, 9))
        assert factors[most] < free[most]
    right, wrong = (predictor(row) for row in (big, table("vtrain_multi.csv")[1]))
    rows = [(right, right(Rates()))] * 2 + [(wrong, 3 * wrong(Rates()))]
    assert calibrate(rows)[1]["compute"] < 1.15  # one row that went wrong changes little
    for wrong in ([], [(of, 0.0)], [(of, math.inf)], [*rows, (of, math.nan)]):
        with pytest.raises(ValueError, match="at least one row, and measured seconds above 0"):
            calibrate(wrong)

"""The sweep continues after it was killed, and a row describes its run."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.models.counts import flops_per_token
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.scaling import sweep
from helpers.scaling.design import BATCH, LENGTH, Run
from helpers.scaling.table import read
from helpers.training.schedule import Cosine

SMALL = [
    Run(phase="sweep", width=8, layers=1, heads=1, steps=steps, rate=1e-2, seed=seed)
    for steps, seed in ((4, 0), (5, 0), (4, 1))
]


def test_it_goes_on_where_it_was_killed(tmp_path):
    table = tmp_path / "s.csv"
    program = (
        "from pathlib import Path\n"
        "from helpers.scaling import sweep\n"
        "run = sweep.Run(phase='sweep', width=8, layers=1, heads=1, steps=4, rate=1e-2)\n"
        "from dataclasses import replace\n"
        "runs = [run, *(replace(run, steps=100_000, seed=s) for s in range(3))]\n"
        "if __name__ == '__main__':\n"
        f"    sweep.sweep(Path({str(table)!r}), workers=2, runs=runs)\n"
    )
    (tmp_path / "go.py").write_text(program)
    root = os.path.dirname(os.path.dirname(os.path.dirname(sweep.__file__)))
    process = subprocess.Popen(
        [sys.executable, tmp_path / "go.py"], env={**os.environ, "PYTHONPATH": root}
    )
    end = time.monotonic() + 120
    while not read(table) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = read(table)
    assert [row["name"] for row in first] == [SMALL[0].name]
    with table.open("a") as file:
        file.write("half a li")  # as if the process had been killed while it wrote
    assert read(table) == first
    rows = sweep.sweep(table, workers=2, runs=SMALL)
    assert rows[0] == first[0]  # not trained again
    assert {row["name"] for row in rows} == {run.name for run in SMALL}
    assert "half" not in table.read_text()


def test_a_run_is_one_training_from_its_seed_on_the_text_for_training(monkeypatch):
    """Written out in one loop, without the stops on the way; held-out text judges it."""
    monkeypatch.setattr(sweep, "CURVE_HELD_OUT", 256)
    run = replace(SMALL[0], steps=80, seed=3)
    row = sweep.carry_out(Place(), run, sequences=512)
    [(tokens, halfway)] = json.loads(row["curve"])
    assert tokens == 40 * BATCH * LENGTH
    assert sweep.stops(160) == [40, 80, 160]
    text, held_out = (pack("python", length=LENGTH, split=s) for s in ("train", "validation"))
    source = Source(text, Order(len(text), BATCH, seed=3))
    schedule = Cosine(peak=1e-2, steps=80, warmup=4)
    strategy = Single(run.config, 3, optimizer=OptimizerConfig(lr=1e-2))
    for k in range(80):
        if k == 40:
            loss, targets = strategy.evaluate(held_out.batch(list(range(0, sweep.HELD_OUT, 32))))
            assert halfway == pytest.approx(float(loss) / float(targets), abs=2e-5)
        strategy.step(replace(source.shard(k, 0, 1), step=k), schedule(k))
    places = range(0, sweep.HELD_OUT, sweep.HELD_OUT // 512)
    loss, targets = strategy.evaluate(held_out.batch(list(places)))
    assert row["loss"] == pytest.approx(float(loss) / float(targets), abs=1e-5)
    assert row["tokens"] == 80 * 16 * 64
    assert row["epochs"] == pytest.approx(row["tokens"] / (len(text) * 64), abs=5e-4)
    assert row["params"] == sum(p.numel() for p in strategy.model.parameters())
    matrices = [p for p in strategy.model.blocks.parameters() if p.ndim == 2]
    assert row["non_embedding"] == sum(p.numel() for p in matrices)
    assert row["exact_flops"] == flops_per_token(run.config, 64) * row["tokens"]
    assert (row["steps"], row["seed"], row["phase"]) == (80, 3, "sweep")


def test_a_run_trains_on_its_worker_s_device(monkeypatch):
    asked = []

    class Stop(Exception):
        pass

    def single(config, seed, **options):
        asked.append((config, seed, options))
        raise Stop

    class OnGpu:
        device = torch.device("cuda", 3)

    monkeypatch.setattr(sweep, "Single", single)
    run = replace(SMALL[0], seed=4)
    with pytest.raises(Stop):
        sweep.carry_out(OnGpu(), run)
    rule = OptimizerConfig(lr=1e-2)
    assert asked == [(run.config, 4, {"optimizer": rule, "device": OnGpu.device})]


def test_a_curve_is_evaluated_at_halves_of_halves():
    assert sweep.stops(79) == [79]
    assert sweep.stops(80) == [40, 80]
    assert sweep.stops(321) == [40, 80, 160, 321]
    longest = sweep.stops(100_000)
    assert (len(longest), longest[0], longest[-1]) == (9, 390, 100_000)


def test_fewer_held_out_sequences_lie_evenly_among_all():
    validation = sweep.pack("python", length=LENGTH, split="validation")
    few, every = (sweep.spread_out(validation, n) for n in (512, sweep.HELD_OUT))
    tokens = torch.cat([batch.tokens for batch in every])
    assert len(tokens) == sweep.HELD_OUT
    assert torch.equal(torch.cat([batch.tokens for batch in few]), tokens[::16])
    (three,) = sweep.spread_out(validation, 3)  # 3 does not divide 8192
    assert torch.equal(three.tokens, tokens[[0, 2730, 5461]])


def test_the_error_is_that_of_a_mean(monkeypatch):
    losses = np.random.default_rng(0).normal(2.0, 0.3, size=400)
    monkeypatch.setattr(sweep, "sequence_losses", lambda strategy, batches: losses)
    row = sweep.carry_out(Place(), SMALL[0], sequences=400)
    assert row["loss"] == pytest.approx(losses.mean(), abs=1e-6)
    means = np.random.default_rng(1).choice(losses, size=(4000, 400)).mean(axis=1)
    assert row["loss_error"] == pytest.approx(means.std(), rel=0.05)


class Place:
    """All that a run asks of its worker."""

    device = torch.device("cpu")

"""The loop trains, evaluates and continues, with the same curve on any number of ranks."""

import math
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import Batch, random_batch
from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source, held_out
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.parallel.strategy import Step
from helpers.runtime.launch import launch
from helpers.training.loop import evaluate, train
from helpers.training.schedule import Cosine

TINY = GPTConfig(context=16, width=16, layers=1, heads=2)
TEXT = ["to be or not to be, that is the question. " * 60]


def source(batch=6):
    blocks = pack(TEXT, length=16)
    return Source(blocks, Order(len(blocks), batch, seed=1)), held_out(blocks, 5, 2)


def single(**options):
    return Single(TINY, 0, optimizer=OptimizerConfig(lr=1e-2), dtype=torch.float64, **options)


def test_it_learns_and_logs_every_step():
    batches, held = source()
    rows, strategy = [], single()
    early = evaluate(strategy, held)
    schedule = Cosine(peak=2e-2, steps=40, warmup=4)
    history = train(
        strategy,
        batches,
        steps=40,
        schedule=schedule,
        log=lambda **row: rows.append(row),
        log_every=7,
    )
    assert history.loss[0] == pytest.approx(math.log(256), abs=0.2)
    assert history.loss[-1] < 0.7 * history.loss[0]
    assert history.column("lr") == [schedule(k) for k in range(40)]
    assert history.column("tokens")[-1] == 40 * 6 * 16
    assert 1 < evaluate(strategy, held) < early
    assert [row["step"] for row in rows] == [0, 7, 14, 21, 28, 35, 39]


def test_it_saves_and_goes_on_with_the_same_count_of_tokens_and_rate():
    batches, _ = source()
    schedule = Cosine(peak=2e-2, steps=9, warmup=3)
    whole, kept = single(), []
    history = train(whole, batches, steps=9, schedule=schedule, save=kept.append, save_every=4)
    assert [one["step"] for one in kept] == [4, 8, 9]
    assert kept[1]["tokens"] == 8 * 6 * 16
    again = single()
    rest = train(again, batches, steps=9, schedule=schedule, saved=kept[0])
    for column in ("step", "loss", "lr", "tokens"):
        assert rest.column(column) == history.column(column)[4:], column
    state, expected = again.full_state(), whole.full_state()
    for name, value in expected["model"].items():
        assert torch.equal(value, state["model"][name])
    with pytest.raises(ValueError, match="leave `first` out"):
        train(single(), batches, steps=9, first=4, saved=kept[0])


class Skipping:
    """A strategy that skips every third update."""

    data_rank, data_size = 0, 1

    def __init__(self):
        self.rates, self.steps = [], []

    def step(self, batch, lr):
        self.rates.append(lr)
        self.steps.append(batch.step)
        loss, norm = torch.tensor(0.25 + batch.step), torch.tensor(0.5 * len(self.rates))
        return Step(loss=loss, grad_norm=norm, tokens=5, skipped=len(self.rates) % 3 == 1)

    def full_state(self):
        return {}

    def load(self, state):
        pass


def test_a_skipped_update_does_not_move_the_schedule_on():
    batches = SimpleNamespace(shard=lambda k, rank, world: random_batch(0, 6, 16, 256))  # all alike
    strategy, kept, rows = Skipping(), [], []
    history = train(
        strategy, batches, steps=5, schedule=float, save=kept.append,
        log=lambda **row: rows.append(row),
    )  # fmt: skip
    assert rows == history.rows  # every step, unless `log_every` is given
    assert strategy.rates == history.column("lr") == [0, 0, 1, 2, 2]
    assert history.loss == [0.25, 1.25, 2.25, 3.25, 4.25]
    assert history.column("grad_norm") == [0.5, 1, 1.5, 2, 2.5]
    assert strategy.steps == [0, 1, 2, 3, 4]
    assert [row["step"] for row in history.rows if "skipped" in row] == [0, 3]
    assert history.column("skipped") == [True, True]
    assert (kept[0]["updates"], kept[0]["tokens"]) == (3, 25)
    resumed = Skipping()
    train(resumed, batches, steps=7, schedule=float, saved=kept[0])
    assert resumed.rates == [3, 3]
    begun = Skipping()
    train(begun, batches, steps=6, schedule=float, first=3)
    assert begun.rates == [3, 3, 4]


def on_ranks(worker, state=None, first=0, steps=6):
    torch.set_num_threads(1)
    batches, held = source(batch=7)
    mesh = make_mesh(Layout(dp=worker.world_size))
    strategy = DataParallel(TINY, 0, mesh, dtype=torch.float64, optimizer=OptimizerConfig(lr=1e-2))
    if state:
        strategy.load(state)
    history = train(strategy, batches, steps=steps, first=first)
    return {
        "loss": history.loss,
        "held out": evaluate(strategy, held),
        "state": strategy.full_state(),
    }


def test_the_same_curve_on_1_2_and_3_ranks_and_across_a_change_of_their_number():
    one, two, three = (launch(on_ranks, n, device="cpu") for n in (1, 2, 3))
    for runs in (two, three):
        for run in runs:
            assert run["loss"] == pytest.approx(one[0]["loss"], abs=1e-12)
            assert run["held out"] == pytest.approx(one[0]["held out"], abs=1e-12)
    begun = launch(on_ranks, 3, device="cpu", steps=4)
    gone_on = launch(on_ranks, 2, device="cpu", state=begun[0]["state"], first=4)
    assert gone_on[0]["loss"] == pytest.approx(one[0]["loss"][4:], abs=1e-12)


def test_evaluation_weighs_by_targets():
    strategy = single()
    a, b = random_batch(0, 3, 8, ignored=0.9), random_batch(1, 3, 8)
    together = Batch(
        tokens=torch.cat([a.tokens, b.tokens]), targets=torch.cat([a.targets, b.targets])
    )
    assert evaluate(strategy, [a, b]) == pytest.approx(evaluate(strategy, [together]), abs=1e-12)
    assert evaluate(strategy, []) == 0  # no target, and no division by zero
    one = random_batch(2, 1, 1)
    assert evaluate(strategy, [one]) == strategy.evaluate(one)[0] > 1  # one target


class Diverging:
    data_rank, data_size = 0, 1

    def __init__(self, loss):
        self.loss = loss

    def step(self, batch, lr):
        return Step(loss=torch.tensor(self.loss), grad_norm=torch.tensor(1.0), tokens=1)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(loss):
    with pytest.raises(FloatingPointError, match="step 3"):
        train(Diverging(loss), source()[0], steps=9, first=3)


def test_rates_are_of_one_step(monkeypatch):
    """Step k takes k + 1 seconds on a clock that only steps move."""
    strategy, clock = Skipping(), [0.0]
    plain_step = strategy.step

    def step(batch, lr):
        clock[0] += batch.step + 1
        return plain_step(batch, lr)

    strategy.step = step
    monkeypatch.setattr("helpers.training.loop.time.perf_counter", lambda: clock[0])
    history = train(strategy, source()[0], steps=3)
    assert "lr" not in history.rows[0]
    assert history.column("seconds") == [1, 3, 6]
    assert history.column("tokens_per_second") == pytest.approx([5, 5 / 2, 5 / 3])

"""What `compare` passes on to the twin and to the ranks, and what it measures. No rank starts."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.training import twin as twins
from helpers.training.twin import compare, some_batch, typical

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


@pytest.fixture
def asked(monkeypatch):
    """The calls of `launch`: (function, ranks, arguments)."""
    calls = []

    def launched(fn, workers, *, device, **given):
        calls.append((fn, workers, given))
        one = {"record": ["kept"], "lossy": "", "bound": 0.0}
        return [one | {"side": k, "differences": (f"row {k}",)} for k in range(workers)]

    monkeypatch.setattr(twins, "launch", launched)
    return calls


def test_twin_and_ranks_get_the_same_settings(asked):
    rule, recipe = OptimizerConfig(lr=0.25), Recipe(layout=Layout(dp=3, tp=2))
    found = compare(
        recipe, config=TINY, seed=3, sequences=50, steps=7, dtype=torch.float32, optimizer=rule,
        micro_batches=2, device="cpu", extra="option",
    )  # fmt: skip
    (first, alone, twin), (second, many, ranks) = asked
    assert (first, alone, second, many) == (twins.train_twin, 1, twins.train_beside_twin, 6)
    batch, expected = twin["batches"](4), random_batch(3_000_013, 50, 8, 32, ignored=0.1)
    assert torch.equal(batch.tokens, expected.tokens)
    assert torch.equal(batch.targets, expected.targets)
    common = {"config": TINY, "seed": 3, "dtype": torch.float32, "optimizer": rule, "steps": 7}
    assert twin == common | {"batches": twin["batches"]}
    assert ranks == twin | {
        "strategy": recipe,
        "layout": {"dp": 3, "tp": 2},
        "options": {"micro_batches": 2, "extra": "option"},
        "twin": ["kept"],
    }
    assert (found.name, found.dtype, found.twin) == ("Recipe", torch.float32, 0)
    assert found.ranks == tuple(range(6))
    assert found.differences == tuple(f"row {k}" for k in range(6))


@pytest.mark.parametrize(
    ("given", "workers", "layout"),
    [
        ({}, 2, {"dp": 2}),
        ({"workers": 5}, 5, {"dp": 5}),
        ({"layout": {"dp": 3, "tp": 1}}, 3, {"dp": 3, "tp": 1}),
    ],
)
def test_the_layout_gives_the_number_of_ranks(asked, given, workers, layout):
    own = [random_batch(k, 2, 8, 32) for k in range(2)]
    found = compare(DataParallel, config=TINY, device="cpu", batches=own.__getitem__, **given)
    _, (_, many, ranks) = asked
    assert (many, ranks["layout"], found.name) == (workers, layout, "DataParallel")
    assert ranks["batches"](1) is own[1]
    assert (ranks["optimizer"], ranks["steps"]) == (OptimizerConfig(), 20)
    assert ranks["options"] == {"micro_batches": 1}
    assert (ranks["dtype"], ranks["seed"]) == (torch.float64, 0)


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_twin_and_ranks_run_on_the_same_device(monkeypatch, gpus):
    """With one GPU, only the twin could have it: so both must use the CPU."""
    asked = []

    def launched(fn, workers, *, device, **arguments):
        asked.append(device)
        return [{"record": []}]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(twins, "launch", launched)
    with pytest.raises(KeyError):  # the fake launch returns nothing to compare
        compare(DataParallel, workers=2)
    assert asked == ["cuda" if gpus == 2 else "cpu"] * 2


def test_the_first_steps_time_does_not_count():
    assert typical([90, 80, 70, 1, 2, 6]) == 2
    assert typical([90, 80, 70]) == 80


@pytest.mark.parametrize(("layout", "told"), [(None, "0123c"), ({"dp": 1}, "01c01c")])
def test_the_step_that_is_looked_at_follows_the_same_steps(monkeypatch, layout, told):
    """The twin takes all steps; what is compared is built again after its own. All are closed."""
    seen = []

    class Told(Single):
        def step(self, batch, lr=None):
            seen.append(str(batch.step % 2 if layout else batch.step))
            return super().step(batch, lr)

        def close(self):
            seen.append("c")

    monkeypatch.setattr(twins, "make_mesh", lambda given, device: None)
    rule = OptimizerConfig(lr=0.1)
    worker = SimpleNamespace(rank=0, device=torch.device("cpu"))
    settings = {"config": TINY, "seed": 1, "dtype": torch.float64, "optimizer": rule, "steps": 2}
    batches = partial(some_batch, 1, 3, TINY)
    (record,) = twins.see(worker, Told, layout, {}, [3], batches=batches, **settings)
    assert "".join(seen) == told
    twin = twins.train_twin(worker, batches=batches, **settings)["record"]
    loss, _, parameters = twin[4]
    assert record.loss == loss
    for name, value in record.parameters.items():
        assert torch.equal(value, parameters[name])


class Here:
    """What a rank's function asks of its worker, in this process."""

    rank, device = 0, torch.device("cpu")

    def __init__(self):
        self.rows = []

    def log(self, **row):
        self.rows.append(row)


def test_what_follows_the_load_is_compared_but_not_measured(monkeypatch):
    """On a clock that only steps move: 1 second before the load, and 100 after it."""
    clock, closed = [0.0], []

    class Slow(Single):
        def step(self, batch, lr=None):
            clock[0] += 1 if batch.step < 2 else 100
            return super().step(batch, lr)

        def close(self):
            closed.append(self)

    monkeypatch.setattr(twins.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(twins, "Single", Slow)
    common = {
        "config": TINY, "seed": 0, "dtype": torch.float64, "optimizer": OptimizerConfig(),
        "batches": lambda k: some_batch(0, 2, TINY, k), "steps": 2,
    }  # fmt: skip
    twin, here = twins.train_twin(Here(), **common), Here()
    made = twins.train_beside_twin(
        here, lambda config, seed, mesh, **options: Slow(config, seed, **options), None, {},
        twin["record"], **common,
    )  # fmt: skip
    for side in (twin["side"], made["side"]):
        assert side.seconds == 1
        assert len(side.losses) == 2
    assert made["side"].losses == twin["side"].losses
    assert [(row.step, row.loaded) for row in made["differences"]] == [
        (-1, False), (0, False), (1, False), (2, True), (3, True),
    ]  # fmt: skip
    assert [(row["step"], row["loss"]) for row in here.rows] == [*enumerate(twin["side"].losses)]
    assert all(row["loss"] == row["twin"] for row in here.rows)
    assert len(set(closed)) == 2  # the first one, and the one that has loaded

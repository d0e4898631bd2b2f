"""What is measured beside the twin: only the steps before the load. No rank is started."""

import torch

from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.training import twin as twins
from helpers.training.twin import some_batch

TINY = GPTConfig(vocab=32, context=8, width=16, layers=1, heads=2)


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

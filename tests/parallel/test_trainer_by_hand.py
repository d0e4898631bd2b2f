"""A trainer's step by hand: twin and strategies share it, so they would agree on a mistake."""

import pytest
import torch

from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def test_a_step_of_sgd_with_clipping():
    rule = OptimizerConfig(rule="sgd", lr=0.2, momentum=0.0, weight_decay=0.0, clip=0.05)
    trainer = Single(TINY, 1, dtype=torch.float64, optimizer=rule, micro_batches=2)
    batch = random_batch(0, 3, 8, 32, ignored=0.3)
    for lr in (None, 0.7):
        model, (total, count) = trainer.full_state()["model"], trainer.evaluate(batch)
        found = trainer.step(batch, lr=lr)
        assert (found.tokens, found.skipped) == (count, False)
        assert count == batch.counted()
        assert float(found.loss) == pytest.approx(total / count, rel=1e-12)
        clipped = trainer.full_gradients()
        assert norm_of(clipped) == pytest.approx(0.05, rel=1e-4)
        assert found.grad_norm > 0.1
        for name, value in trainer.full_state()["model"].items():
            moved = model[name] - (lr or 0.2) * clipped[name]
            torch.testing.assert_close(value, moved, rtol=0, atol=1e-15)


def norm_of(gradients) -> float:
    return float(torch.cat([g.flatten() for g in gradients.values()]).norm())


def test_the_first_values_are_the_config_s_of_the_seed():
    for seed in (0, 5):
        for name, value in Single(TINY, seed, dtype=torch.float64).full_state()["model"].items():
            assert torch.equal(value, TINY.first_value(name, value.shape, seed).double())

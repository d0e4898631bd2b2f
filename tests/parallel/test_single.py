"""The single process trains like a plain PyTorch loop, because the twin needs a test too.

The harness cannot detect errors in code that twin and strategy share: clipping, decay, the mean.
"""

import pytest
import torch

from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig, build, loss_sum
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single

CONFIG = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2, bias=True, norm="layer")
RULES = {
    "adamw": {},
    "clipped": {"clip": 0.05},
    "not clipped": {"clip": None},
    "sgd": {"rule": "sgd", "lr": 0.1, "weight_decay": 0.2},
}


def by_hand(rule: OptimizerConfig, steps: int, rates):
    """Losses, norms and parameters of a plain PyTorch training loop."""
    torch.manual_seed(5)
    model = build(CONFIG, 3, torch.float64)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": rule.weight_decay}]
    groups += [{"params": others, "weight_decay": 0.0}]
    if rule.rule == "sgd":
        optimizer = torch.optim.SGD(groups, lr=rule.lr, momentum=rule.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, lr=rule.lr, betas=rule.betas, eps=rule.eps)
    losses, norms = [], []
    for k in range(steps):
        batch = random_batch(k, 5, 8, 32, ignored=0.3)
        loss, count = loss_sum(model(batch.tokens), batch.targets)
        optimizer.zero_grad()
        (loss / count).backward()
        most = float("inf") if rule.clip is None else rule.clip
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), most).item())
        for group in optimizer.param_groups:
            group["lr"] = rates(k)
        optimizer.step()
        losses.append(loss.item() / count.item())
    return losses, norms, dict(model.named_parameters())


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("changes", RULES.values(), ids=RULES)
def test_it_equals_a_plain_training_loop(changes, micro_batches):
    rule = OptimizerConfig(**changes)
    rates = lambda k: rule.lr / (k + 1)  # noqa: E731
    losses, norms, parameters = by_hand(rule, 6, rates)
    single = Single(CONFIG, 3, dtype=torch.float64, optimizer=rule, micro_batches=micro_batches)
    for k in range(6):
        step = single.step(random_batch(k, 5, 8, 32, ignored=0.3), lr=rates(k))
        assert step.loss.item() == pytest.approx(losses[k], abs=1e-12)
        assert step.grad_norm.item() == pytest.approx(norms[k], abs=1e-12)
        assert not step.skipped
    assert min(norms) > 0.05  # so the run with clip is clipped
    for name, value in single.full_state()["model"].items():
        torch.testing.assert_close(value, parameters[name].detach(), rtol=0, atol=1e-12)

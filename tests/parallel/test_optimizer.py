"""The update rule: what decays, what is clipped, and a state that goes by names."""

import pytest
import torch

from helpers.models.gpt import GPTConfig, build
from helpers.parallel.optimizer import (
    OptimizerConfig,
    clip,
    load_optimizer_state,
    optimizer_state,
    set_lr,
)

TINY = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2, bias=True, norm="layer")


def parameters():
    return dict(build(TINY, 0, torch.float64).named_parameters())


def test_matrices_alone_decay():
    held = parameters()
    before = {name: p.detach().clone() for name, p in held.items()}
    optimizer = OptimizerConfig(lr=0.1, weight_decay=0.5).make(held)
    for p in held.values():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in held.items():
        shrunk = 1 - 0.1 * 0.5 if p.ndim >= 2 else 1
        torch.testing.assert_close(p.detach(), before[name] * shrunk, rtol=1e-14, atol=0)


@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_the_state_goes_on_under_other_names_of_tensors(rule):
    def step(held, optimizer, k):
        generator = torch.Generator().manual_seed(k)
        for p in held.values():
            p.grad = torch.randn(p.shape, dtype=p.dtype, generator=generator)
        optimizer.step()

    config = OptimizerConfig(rule=rule)
    first, second = parameters(), parameters()
    optimizer, other = config.make(first), config.make(second)
    for k in range(3):
        step(first, optimizer, k)
    state = optimizer_state(optimizer, first)
    with torch.no_grad():
        for name, p in second.items():
            p.copy_(first[name])
    load_optimizer_state(other, second, state)
    step(first, optimizer, 3)
    step(second, other, 3)
    assert all(torch.equal(first[name], second[name]) for name in first)
    # what was saved is a copy
    assert not torch.equal(
        next(iter(state.values()))[{"adamw": "exp_avg", "sgd": "momentum_buffer"}[rule]],
        next(iter(optimizer_state(optimizer, first).values()))[
            {"adamw": "exp_avg", "sgd": "momentum_buffer"}[rule]
        ],
    )


def test_clipping_is_by_the_norm_of_all_together():
    pair = [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    pair[0].grad, pair[1].grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert clip(pair, None).item() == 5
    assert [p.grad.item() for p in pair] == [3, 4]
    assert clip(pair, 1.0).item() == 5
    assert torch.cat([p.grad for p in pair]).norm().item() == pytest.approx(1, rel=1e-5)


def test_the_rate_can_be_set_for_a_step():
    optimizer = OptimizerConfig(lr=0.3).make(parameters())
    set_lr(optimizer, None)
    assert {group["lr"] for group in optimizer.param_groups} == {0.3}
    set_lr(optimizer, 0.1)
    assert {group["lr"] for group in optimizer.param_groups} == {0.1}


@pytest.mark.parametrize(
    "wrong",
    [{"rule": "adam"}, {"lr": -1}, {"betas": (0.9, 1.0)}, {"clip": 0}, {"eps": 0}],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        OptimizerConfig(**wrong)

"""The update rule: decay, clipping, and a state by names."""

import pytest
import torch

from helpers.models.gpt import GPTConfig, build
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.world import ALONE
from helpers.state.placing import flat, whole

TINY = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2, bias=True, norm="layer")


def parameters():
    return dict(build(TINY, 0, torch.float64).named_parameters())


def parts(held):
    return {name: whole(ALONE, name, p.shape) for name, p in held.items()}


def test_matrices_alone_decay():
    held = parameters()
    before = {name: p.detach().clone() for name, p in held.items()}
    optimizer = OptimizerConfig(lr=0.1, weight_decay=0.5).make(held, parts(held))
    for p in held.values():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in held.items():
        shrunk = 1 - 0.1 * 0.5 if p.ndim >= 2 else 1
        torch.testing.assert_close(p.detach(), before[name] * shrunk, rtol=1e-14, atol=0)


def test_a_flat_shard_of_a_matrix_decays_as_the_matrix_does():
    shard = torch.ones(64, dtype=torch.float64, requires_grad=True)
    shard.grad = torch.zeros_like(shard)
    part = flat(ALONE, whole(ALONE, "blocks.0.mlp.up.weight", (8, 8)), "dp")
    OptimizerConfig(lr=0.1, weight_decay=0.5).make({"up": shard}, {"up": part}).step()
    torch.testing.assert_close(shard.detach(), torch.full_like(shard, 0.95), rtol=1e-14, atol=0)


def test_clipping_is_a_factor_as_torch_has_it():
    pair = [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    pair[0].grad, pair[1].grad = torch.tensor([3.0]), torch.tensor([4.0])
    found = OptimizerConfig(clip=1.0).factor(torch.tensor(5.0))
    torch.nn.utils.clip_grad_norm_(pair, 1.0)
    assert found * 3 == pair[0].grad
    assert OptimizerConfig(clip=6.0).factor(torch.tensor(5.0)) == 1
    assert OptimizerConfig(clip=None).factor(torch.tensor(5.0)) is None


def test_sgd_has_momentum_and_adamw_its_own_numbers():
    p = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    rule = OptimizerConfig(rule="sgd", lr=0.1, momentum=0.5, weight_decay=0.0)
    optimizer = rule.make({"p": p}, parts({"p": p}))
    for _ in range(2):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert p.tolist() == pytest.approx([-0.1 * (1 + 1.5)] * 3)
    made = OptimizerConfig(betas=(0.7, 0.8), eps=1e-3).make({"p": p}, parts({"p": p}))
    assert (made.defaults["betas"], made.defaults["eps"]) == ((0.7, 0.8), 1e-3)
    own = OptimizerConfig(rule=torch.optim.Adagrad, lr=0.25).make({"p": p}, parts({"p": p}))
    assert own.defaults["lr"] == 0.25
    assert [group["weight_decay"] for group in own.param_groups] == [0.0]  # of a vector


def test_nothing_to_train_is_said():
    with pytest.raises(ValueError, match="nothing to train"):
        OptimizerConfig().make({}, {})


def test_the_rate_can_be_set_for_a_step():
    held = parameters()
    optimizer = OptimizerConfig(lr=0.3).make(held, parts(held))
    assert {group["lr"] for group in optimizer.param_groups} == {0.3}
    set_lr(optimizer, 0.1)
    assert {group["lr"] for group in optimizer.param_groups} == {0.1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"rule": "adam"},
        {"lr": -1},
        {"weight_decay": -0.1},
        {"betas": (0.9, 1.0)},
        {"betas": (-0.1, 0.9)},
        {"momentum": 1.0},
        {"clip": 0},
        {"clip": -1.0},
        {"eps": 0},
        {"eps": -1e-8},
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        OptimizerConfig(**wrong)


def test_the_ends_of_the_ranges_are_allowed_and_the_defaults_are_gpt_3_s():
    OptimizerConfig(lr=0, weight_decay=0, betas=(0.0, 0.0), momentum=0.0, clip=1e-9, eps=1e-30)
    rule = OptimizerConfig()
    assert (rule.rule, rule.lr, rule.clip, rule.momentum) == ("adamw", 1e-3, 1.0, 0.9)
    assert (rule.betas, rule.eps, rule.weight_decay) == ((0.9, 0.95), 1e-8, 0.1)

"""A mixture of experts against a loop over tokens; what it adds to the loss; what it counts."""

from dataclasses import replace

import pytest
import torch

from helpers.data.batch import random_batch
from helpers.models.experts.layer import Mixture
from helpers.models.gpt import GPTConfig, build
from helpers.models.settings import ExpertSettings
from tests.models.peers import randomised

SMALL = GPTConfig(vocab=31, context=16, width=12, layers=3, heads=3)
KINDS = {
    "mixtral": ExpertSettings(count=5, hidden=7),
    "switch": ExpertSettings(count=4, chosen=1, normalized=False, capacity=1.0, loss_rate=0.01),
    "deepseek": ExpertSettings(
        **{"count": 8, "chosen": 4, "hidden": 6, "shared": 2, "after": 1, "groups": 4, "limit": 2},
        **{"score": "sigmoid", "scale": 2.5, "loss_rate": 1e-3, "bias_rate": 1e-3, "z_rate": 1e-3},
    ),
    "drops": ExpertSettings(count=6, chosen=2, capacity=0.6, z_rate=0.1, loss_rate=0.1),
    "all": ExpertSettings(count=3, chosen=3),
}
every_kind = pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)


def config_of(settings):
    return replace(SMALL, experts=settings)


def one_by_one(mixture, x, found):
    """Each token, alone, through each of its experts."""
    out, experts = [], mixture.experts
    for b, sequence in enumerate(x):
        for t, token in enumerate(sequence):
            y = torch.zeros_like(token)
            for j, expert in enumerate(found.chosen[b, t].tolist()):
                if found.kept is None or found.kept[b, t, j]:
                    gate, up = experts.gate[expert] @ token, experts.up[expert] @ token
                    inner = torch.nn.functional.silu(gate) * up
                    y = y + found.gates[b, t, j] * (experts.down[expert] @ inner)
            out.append(y if mixture.shared is None else y + mixture.shared(token))
    return torch.stack(out).view_as(x)


@every_kind
def test_each_token_alone(settings):
    mixture = randomised(Mixture(config_of(settings), dtype=torch.float64))
    x = torch.randn(3, 8, 12, dtype=torch.float64, requires_grad=True)
    found = mixture.router(x)
    expected, y = one_by_one(mixture, x, found), mixture(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-13)
    scale = torch.randn_like(y)
    trained = [x, *(p for p in mixture.parameters() if p.requires_grad)]
    got, wanted = (torch.autograd.grad((z * scale).sum(), trained) for z in (y, expected))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    dropped = found.kept is not None and not found.kept.all()
    assert dropped == (settings.capacity is not None)
    assert mixture.eval().router(x).kept is None  # a trained model drops nothing


@every_kind
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_micro_batches_add_up_to_the_batch(settings, recompute):
    """The loss, its extra part, gradients and loads: of sequences, whoever has them."""
    config, batch = replace(config_of(settings), recompute=recompute), random_batch(0, 5, 9, 31)
    whole, parts = build(config, 1, torch.float64), build(config, 1, torch.float64)
    total, _ = whole.loss(batch)
    total.backward()
    every = sum(losses := [parts.loss(micro)[0] for micro in batch.micro(7)])
    torch.testing.assert_close(every, total, rtol=1e-13, atol=0)
    for loss in losses:
        loss.backward()
    for (name, p), q in zip(whole.named_parameters(), parts.parameters(), strict=True):
        if p.requires_grad:
            torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-11, msg=name)
        else:
            assert name.endswith("router.balance")
    for one, other in zip(mixtures(whole), mixtures(parts), strict=True):
        loads = one.router.take_loads()
        if settings.bias_rate:
            assert loads.sum() == 5 * 9 * settings.chosen
            assert torch.equal(loads, other.router.take_loads())
        assert (loads is None) == (not settings.bias_rate)
        assert one.router.take_loads() is None


def mixtures(model):
    return [m for m in model.modules() if isinstance(m, Mixture)]


def test_extra_is_in_the_loss_of_training_alone():
    config, batch = config_of(KINDS["deepseek"]), random_batch(0, 2, 9, 31)
    model = build(config, 1, torch.float64)
    none = build(replace(config, experts=replace(config.experts, loss_rate=0, z_rate=0)), 1)
    bare = none.double().loss(batch)[0]
    total = model.loss(batch)[0]
    assert model.extra() == 0  # it was taken
    model(batch.tokens)
    extra = model.extra().item()
    assert 0 < extra == pytest.approx((total - bare).item(), rel=1e-5)
    assert model.eval().loss(batch)[0].item() == pytest.approx(bare.item(), rel=1e-6)
    assert all(m.router.loads is not None for m in mixtures(model))
    for mixture in mixtures(model):
        mixture.router.take_loads()
    with torch.no_grad():
        model.loss(batch)
    assert all(m.router.loads is None for m in mixtures(model))


def test_a_bias_changes_the_choice_and_no_gate():
    config = config_of(KINDS["deepseek"])
    mixture = randomised(Mixture(config, dtype=torch.float64))
    x = torch.randn(2, 8, 12, dtype=torch.float64)
    with torch.no_grad():
        mixture.router.balance.zero_()
        before = mixture.router(x)
        mixture.router.balance[3] = 9.0
    after = mixture.router(x)
    assert (after.chosen[..., 0] == 3).all()
    assert not (before.chosen == 3).any(-1).all()
    raw = torch.sigmoid(x @ mixture.router.weight.T).gather(-1, after.chosen)
    torch.testing.assert_close(after.gates, 2.5 * raw / raw.sum(-1, keepdim=True))


def test_a_router_computes_in_float32_at_least():
    config, x = config_of(KINDS["deepseek"]), torch.randn(2, 8, 12).to(torch.bfloat16)
    exact = randomised(Mixture(config, dtype=torch.bfloat16))
    found = exact.router(x)
    wide = exact.float().router(x.float())
    assert found.gates.dtype is torch.float32
    assert torch.equal(found.gates, wide.gates)
    assert torch.equal(found.chosen, wide.chosen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp": "gelu"}, "experts are SwiGLUs without biases"),
        ({"mlp": "none"}, "experts are SwiGLUs without biases"),
        ({"bias": True}, "experts are SwiGLUs without biases"),
        ({"layers": 1}, "experts after 1 blocks of 1: no block has any"),
    ],
)
def test_configurations_that_cannot_be_meant(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(config_of(KINDS["deepseek"]), **changes)

"""What is recorded of a step, on one process."""

from dataclasses import replace

import pytest
import torch

from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.units import Apart
from helpers.training.witness import named, watching, witness

TINY = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2)
BATCH = random_batch(0, 4, 4, 16)


def seen(config=TINY, rule=None, **changes):
    engine, rule = changes.pop("engine", InTurn), rule or OptimizerConfig()
    given = {"dtype": torch.float64, "optimizer": rule, **changes}
    return witness(Recipe(engine=engine)(config, 0, **given), BATCH, rule)


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-14)


def test_gradients_are_those_before_clipping():
    clipped, free = (seen(rule=OptimizerConfig(clip=clip)) for clip in (1e-3, None))
    assert_same(clipped.gradients, free.gradients)
    assert clipped.loss == free.loss


class Together(InTurn):
    """All forwards, then one backward: autograd begins with the last micro-batch."""

    def step(self, micro_batches, tokens, loss):
        totals = [self.model.loss(batch)[0] for batch in micro_batches]
        loss.add(sum(totals).detach())
        loss.send()
        (sum(totals) / tokens.wait()).backward()


@pytest.mark.parametrize("engine", [InTurn, Together])
def test_the_rows_of_micro_batches_are_in_order(engine):
    whole, parts = seen(), seen(micro_batches=4, engine=engine)
    assert_same(parts.forward, whole.forward)
    assert_same(parts.backward, whole.backward)


def test_a_recomputed_forward_is_not_recorded_again():
    assert_same(seen(replace(TINY, recompute="full")).forward, seen().forward)


def test_the_hooks_are_removed_also_after_an_error():
    model = TINY.build(torch.float64, "cpu")

    def fail():
        with watching(model) as (outputs, _):
            model.loss(BATCH)
            raise ZeroDivisionError(len(outputs))

    with pytest.raises(ZeroDivisionError, match=r"[1-9]"):
        fail()
    assert not any(module._forward_hooks for module in model.modules())


def test_what_is_recorded_is_a_copy():
    """The next module may change an output, and another hook its gradient."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(inplace=True))
    with torch.no_grad():
        model[0].weight.copy_(-torch.eye(3))
        model[0].bias.zero_()
    with watching(model) as (outputs, gradients):
        out = model(torch.ones(2, 3))
        out.register_hook(lambda gradient: gradient.mul_(0))
        out.backward(torch.ones(2, 3))
    assert outputs["0"][0].tolist() == [[-1.0] * 3] * 2
    assert outputs["1"][0].tolist() == [[0.0] * 3] * 2
    assert gradients["1"][0].tolist() == [[1.0] * 3] * 2


def test_a_frozen_module_has_an_output_and_no_gradient():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3).requires_grad_(False), torch.nn.Linear(3, 3))
    with watching(model) as (outputs, gradients):
        model(torch.ones(2, 3)).sum().backward()
    assert ({*outputs}, {*gradients}) == ({"0", "1", ""}, {"1", ""})


def test_the_modules_of_stages_have_their_plain_names():
    """The stages themselves have none, and so no output of the plain model."""
    stages = Apart({"0": torch.nn.Sequential(torch.nn.Linear(3, 3)),
                    "1": torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU())})  # fmt: skip
    assert [name for name, _ in named(stages)] == ["0", "0", "1"]
    assert [name for name, _ in named(stages["1"])] == ["", "0", "1"]


def test_the_parameters_are_those_before_and_after_the_step():
    rule = OptimizerConfig(lr=0.1)
    trained = Recipe(engine=InTurn)(TINY, 0, dtype=torch.float64, optimizer=rule)
    first = {name: p.detach().clone() for name, p in trained.model.named_parameters()}
    one, two = (witness(trained, BATCH, rule) for _ in range(2))
    assert_same(one.before, first)
    assert_same(two.before, one.parameters)
    assert_same(two.parameters, dict(trained.model.named_parameters()))
    assert not torch.equal(one.parameters["norm.weight"], first["norm.weight"])
    assert not any(one.optimizer.values())  # none before the first step
    assert two.optimizer["norm.weight"]["exp_avg"].any()
    assert torch.equal(one.numbers, BATCH.numbers)

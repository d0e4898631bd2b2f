"""An optimizer that cannot update shards is refused, with its reason."""

from functools import partial

import pytest
import torch

from helpers.parallel.optimizer import RULES, OptimizerConfig
from helpers.parallel.zero.elementwise import NotElementWise, refuse_mixing

ELEMENT_WISE = ("Adadelta", "Adagrad", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")


@pytest.mark.parametrize("rule", [*RULES, *ELEMENT_WISE, "ASGD"])
def test_element_wise_optimizers_are_allowed(rule):
    refuse_mixing(OptimizerConfig(rule=rule if rule in RULES else getattr(torch.optim, rule)))


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("Muon", "Muon cannot update them"),
        ("LBFGS", "LBFGS cannot update them"),
        ("Adafactor", "Adafactor updates a matrix by more than"),
        ("SparseAdam", "SparseAdam cannot update them"),
    ],
)
def test_other_optimizers_are_refused(rule, reason):
    if not hasattr(torch.optim, rule):
        pytest.skip(f"this PyTorch has no {rule}")
    with pytest.raises(ValueError, match=reason.replace("cannot", ".*cannot")) as caught:
        refuse_mixing(OptimizerConfig(rule=getattr(torch.optim, rule)))
    assert isinstance(caught.value, NotElementWise)
    if "cannot" in reason:  # the rule's own reason is there too
        assert f"({caught.value.__cause__})" in str(caught.value)


class TrustRatio(torch.optim.SGD):
    """Scales each update by the norm of its whole parameter, like LARS."""

    def __init__(self, groups, lr):
        super().__init__(groups, lr=lr)

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(p.detach().norm())
        super().step()


def test_an_optimizer_of_one_s_own_is_tried_too():
    with pytest.raises(NotElementWise, match="TrustRatio updates a matrix by more than"):
        refuse_mixing(OptimizerConfig(rule=TrustRatio))


class LaterTrustRatio(TrustRatio):
    """The first update is plain."""

    updates = 0

    def step(self):
        self.updates += 1
        torch.optim.SGD.step(self) if self.updates == 1 else super().step()


def test_an_optimizer_that_mixes_later_only_is_refused_too():
    with pytest.raises(NotElementWise, match="LaterTrustRatio updates a matrix by more than"):
        refuse_mixing(OptimizerConfig(rule=LaterTrustRatio))


def slightly(groups, lr):
    """Mix by a millionth of an update."""
    optimizer = torch.optim.SGD(groups, lr=lr)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def mix(*_):
        for p in parameters:
            p.grad.add_(p.grad.mean(), alpha=1e-6)

    optimizer.register_step_pre_hook(mix)
    return optimizer


def test_an_optimizer_that_mixes_a_little_is_refused():
    with pytest.raises(NotElementWise, match="but slightly updates a matrix by more than"):
        refuse_mixing(OptimizerConfig(rule=slightly))


def test_a_rule_without_a_name_is_the_rule():
    for optimizer, reason in (("Adafactor", "but the rule updates"), ("LBFGS", "and the rule can")):
        rule = partial(getattr(torch.optim, optimizer))
        with pytest.raises(NotElementWise, match=reason):
            refuse_mixing(OptimizerConfig(rule=rule))

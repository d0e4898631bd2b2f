"""An optimizer that cannot update shards is refused, with its reason."""

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
    with pytest.raises(NotElementWise, match=reason.replace("cannot", ".*cannot")):
        refuse_mixing(OptimizerConfig(rule=getattr(torch.optim, rule)))


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

"""What ZeRO refuses, with its reason: before any message, or at the step."""

from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.parallel.ddp.replicas import UnusedParameters
from helpers.parallel.optimizer import RULES, OptimizerConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.refusals import NotElementWise, refuse_mixing
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from helpers.state.placing import Seat
from tests.parallel.zero.beside import UNTIED

pytestmark = pytest.mark.usefixtures("kept_ranks")


def unused(config, seed, seat, dtype):
    placed = plain(config, seed, seat, dtype)
    model = placed.model
    for block in model.blocks.values():
        block.forward = lambda x, *_, **__: x
    return placed


def sparse(config, seed, seat, dtype):
    placed = plain(config, seed, seat, dtype)
    model = placed.model
    model.embedding.sparse = True
    return placed


def failing(worker, cases):
    """The error of each case, by name."""
    torch.set_num_threads(1)
    mesh, found = make_mesh(Layout(dp=worker.world_size)), {}
    batch = random_batch(worker.rank, 2, 8, 33)
    for name, (recipe, change) in cases.items():
        trainer = recipe(UNTIED, 0, mesh)
        try:
            change(trainer)
            trainer.step(batch)
        except Exception as error:
            found[name] = type(error).__name__, str(error)
        torch.distributed.barrier()
    return found


def nothing(trainer):
    pass


def in_place(trainer):
    with torch.no_grad():
        next(iter(trainer.parameters.values())).mul_(2)


def by_another_storage(trainer):
    p = trainer.parameters["norm.weight"]
    p.data = torch.ones_like(p)


def unused_later(trainer):
    trainer.step(random_batch(0, 2, 8, 33))
    for block in trainer.model.blocks.values():
        block.forward = lambda x, *_, **__: x


def test_steps_that_would_be_wrong_are_refused():
    cases = {}
    for name, owner in {"1": Zero1, "2": Zero2, "3": Zero3}.items():
        recipe = partial(Recipe, owner=owner)
        cases[name, "unused"] = recipe(transform=unused), nothing
        cases[name, "unused later"] = recipe(), unused_later
        cases[name, "sparse"] = recipe(transform=sparse), nothing
        cases[name, "written"] = recipe(), in_place
        cases[name, "replaced"] = recipe(), by_another_storage
    for rank, run in enumerate(launch(failing, 2, device="cpu", cases=cases)):
        for name in "123":
            for when in ("unused", "unused later"):
                kind, text = run[name, when]
                assert kind == UnusedParameters.__name__
                assert f"no gradient on rank {rank} for blocks.0.attention_norm.weight, " in text
                assert "blocks.0.mlp.up.weight and 1 more. If the loss leaves them" in text
            kind, text = run[name, "sparse"]
            assert kind == "NotImplementedError"
            assert "embedding.weight is sparse" in text
            kind, text = run[name, "replaced"]
            assert kind == "RuntimeError"
            assert "norm.weight has changed outside" in text
            kind, text = run[name, "written"]
            refused = "single memory location" if name == "3" else "embedding.weight has changed"
            assert kind == "RuntimeError"
            assert refused in text


def test_it_needs_ranks():
    with pytest.raises(ValueError, match="ZeRO shards over ranks: make a mesh"):
        Zero1(UNTIED.build(device="meta"), {}, None, rule=OptimizerConfig())


def test_an_owner_tries_its_rule_before_it_makes_a_group():
    rule = OptimizerConfig(rule=torch.optim.Adafactor)
    with pytest.raises(NotElementWise, match="Adafactor updates a matrix by more than"):
        Recipe(owner=Zero3)(UNTIED, 0, Seat(Layout(dp=2), 0), optimizer=rule)


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

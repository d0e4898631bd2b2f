"""An update that is one step late: exactly so, within its bound, and beside the next step."""

import threading
import time
from functools import partial
from itertools import permutations

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.parallel.ddp.local_steps import LocalSteps
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.offload.delay import BOUND, LATE, Delayed, delayed
from helpers.parallel.offload.disk import on_disk
from helpers.parallel.offload.host import OnHost
from helpers.parallel.offload.speculate import speculative
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import BOUNDS, Mixed, Plain
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage3 import Zero3
from helpers.precision.scaling import LossScale
from helpers.runtime.launch import launch
from helpers.training.twin import compare
from tests.parallel.beside import ODD, RULE, apart, flat

EXACT = Mixed(low=torch.float64)
GIVEN = {"dtype": torch.float64, "optimizer": RULE}
STEPS = 5


def batch(k):
    return random_batch(k, 5, ODD.context, ODD.vocab)


def rate(k):
    return 1e-3 * (k + 1)


def late(warm_up=0):
    """One process: step k has the parameters of max(warm_up, k - 1) updates, or of k before that.

    Returns:
        Each step's loss, and the parameters after its own update.
    """
    one = Single(ODD, 3, **GIVEN)
    masters = {n: p.detach().clone().requires_grad_() for n, p in one.parameters.items()}
    optimizer = RULE.make(masters, one.owner.world.own)
    copied = lambda: {n: m.detach().clone() for n, m in masters.items()}  # noqa: E731
    after, losses = [copied()], []
    for k in range(STEPS):
        seen = after[k if k <= warm_up else max(warm_up, k - 1)]
        with torch.no_grad():
            for name, p in one.parameters.items():
                p.copy_(seen[name])
        losses.append(one.step(batch(k), lr=rate(k)).loss.item())
        for name, gradient in one.full_gradients().items():
            masters[name].grad = gradient
        set_lr(optimizer, rate(k))
        optimizer.step()
        after.append(copied())
    return losses, after[1:]


def trains(worker, owner, precision, looks):
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size)) if worker.world_size > 1 else None
    ours = Recipe(owner=owner, precision=precision)(ODD, 3, mesh, **GIVEN)
    losses, states = [], []
    for k in range(STEPS):
        share = batch(k).shard(ours.data_rank, ours.data_size)
        losses.append(ours.step(share, lr=rate(k)).loss.item())
        states.append(ours.full_state()["model"] if looks or k == STEPS - 1 else None)
    ours.close()
    return losses, states


@pytest.mark.usefixtures("kept_ranks")
@pytest.mark.parametrize(
    ("owner", "ranks", "precision", "warm_up", "looks"),
    [
        (Local, 1, EXACT, 0, True),
        (Local, 1, EXACT, 2, False),
        (Replicated, 2, OnHost(), 0, False),
        (Zero3, 2, Mixed(torch.float64, scale=LossScale(scale=4.0)), 2, True),
        (Zero1, 3, OnHost(EXACT), 0, False),
    ],
    ids=["looked at", "warm-up", "DDP", "ZeRO 3", "ZeRO 1"],
)
def test_it_is_one_step_late_and_no_more(owner, ranks, precision, warm_up, looks):
    """And to look at the state in between changes nothing."""
    losses, after = late(warm_up)
    given = {"owner": delayed(owner, warm_up=warm_up), "precision": precision, "looks": looks}
    for found, states in launch(trains, ranks, device="cpu", **given):
        assert found == pytest.approx(losses, abs=1e-12)
        for state, right in zip(states, after, strict=True):
            assert state is None or apart(state, right) < 1e-12


def test_while_it_warms_up_it_is_exact():
    ours = Recipe(owner=delayed(warm_up=STEPS), precision=EXACT)(ODD, 3, **GIVEN)
    twin = Single(ODD, 3, **GIVEN)
    for k in range(STEPS):
        ours.step(batch(k)), twin.step(batch(k))
        for kind in ("model", "optimizer"):
            a, b = (flat(one.full_state()["optimizer"]) if kind == "optimizer"
                    else one.full_state()[kind] for one in (ours, twin))  # fmt: skip
            assert apart(a, b) < 1e-12


def test_a_loaded_run_does_not_warm_up_again():
    recipe = Recipe(owner=delayed(warm_up=1), precision=EXACT)
    ours, anew = (recipe(ODD, 3, **GIVEN) for _ in range(2))
    ours.step(batch(0))
    anew.load(ours.full_state())
    before = {name: p.detach().clone() for name, p in anew.parameters.items()}
    anew.step(batch(1))
    assert apart(before, anew.parameters) == 0  # its update comes a step later


@pytest.mark.usefixtures("kept_ranks")
def test_it_says_so_and_stays_within_its_bound():
    recipe = Recipe(owner=delayed(Zero1), precision=OnHost())
    rule = OptimizerConfig(eps=1e-4)  # see helpers.parallel.precision.BOUNDS
    comparison = compare(recipe, device="cpu", optimizer=rule, steps=12)
    assert comparison, comparison
    assert (comparison.lossy, comparison.bound) == (LATE, BOUND)
    assert 0.02 < comparison.worst("relative") < BOUND


def test_it_adds_to_what_its_owner_and_its_precision_lose():
    ours = Recipe(owner=delayed(), precision=OnHost(Mixed()))(ODD)
    assert ours.lossy == f"it computes in torch.bfloat16, and {LATE}"
    assert ours.bound == max(BOUND, BOUNDS[torch.bfloat16])


def test_the_next_step_does_compute_while_the_update_runs():
    ours = Recipe(owner=delayed(), precision=EXACT)(ODD, 3, **GIVEN)
    computing, seen = threading.Event(), []
    real = ours.owner.step_late

    def waits(*args):
        seen.append(computing.wait(10))
        real(*args)

    ours.owner.step_late = waits
    ours.step(batch(0))
    ours.model.embedding.register_forward_pre_hook(lambda *_: computing.set())
    ours.step(batch(1))
    ours.full_state()
    assert seen == [True, True]


def test_a_skipped_step_leaves_the_running_update_alone():
    scaled = Mixed(torch.float64, scale=LossScale(scale=2.0**10))
    both = [Recipe(owner=owner, precision=scaled)(ODD, 3, **GIVEN) for owner in (delayed(), Local)]
    for one in both:
        one.step(batch(0))
        right = one.model.loss
        one.model.loss = lambda b, right=right: (right(b)[0] * 1e308, right(b)[1])
        assert one.step(batch(1)).skipped
    assert apart(*(one.full_state()["model"] for one in both)) < 1e-12


def test_an_error_of_the_update_is_raised():
    ours = Recipe(owner=delayed(), precision=EXACT)(ODD)

    def fails(*_):
        raise ArithmeticError("no host")

    ours.owner.step_late = fails
    ours.step(batch(0))
    with pytest.raises(ArithmeticError, match="no host"):
        ours.full_state()


def test_it_loads_and_goes_on_from_what_it_saved():
    ours, other = (Recipe(owner=delayed(), precision=EXACT)(ODD, 3, **GIVEN) for _ in range(2))
    twin = Single(ODD, 3, **GIVEN)
    for k in range(2):
        ours.step(batch(k))
    for one in (other, twin, ours):
        one.load(ours.full_state())
        one.step(batch(2))  # the first update after a load has no older parameters
    assert apart(other.full_state()["model"], twin.full_state()["model"]) < 1e-12
    assert apart(ours.full_state()["model"], twin.full_state()["model"]) < 1e-12
    moments = [flat(one.full_state()["optimizer"]) for one in (other, twin)]
    assert apart(*moments) < 1e-12


@pytest.mark.parametrize("moved", [delayed, speculative])
def test_updates_beside_a_step_need_master_copies(moved):
    with pytest.raises(ValueError, match="need master copies"):
        Recipe(owner=moved(), precision=Plain())(ODD)


MOVED = (delayed, speculative, partial(on_disk, folder=""))


@pytest.mark.parametrize(
    ("outer", "inner"), [*permutations(MOVED, 2), *((moved, lambda: LocalSteps) for moved in MOVED)]
)
def test_an_owner_moves_its_updates_in_one_way(outer, inner):
    with pytest.raises(ValueError, match=r"Local\w* moves its updates already: \w+ cannot too"):
        outer(inner())


def test_a_partial_owner_keeps_its_options():
    made = delayed(partial(Zero1, in_flight=0))
    assert {Delayed, Zero1} <= set(made.func.__mro__)
    assert made.keywords == {"in_flight": 0}


def test_a_slow_update_is_waited_for():
    one, slow = (Recipe(owner=delayed(), precision=OnHost())(ODD, 3, **GIVEN) for _ in range(2))
    for k in range(4):
        one.step(batch(k))
        slow.owner.thread.submit(time.sleep, 0.3)  # the update of this step is behind it
        slow.step(batch(k))
    for name, value in one.parameters.items():
        assert torch.equal(value, slow.parameters[name]), name


def test_a_gradient_is_used_once():
    owner = Recipe(owner=delayed(), precision=OnHost())(ODD, 3, **GIVEN).owner
    owner.step_late(RULE, {name: torch.ones_like(t) for name, t in owner.updated.items()})
    before = {name: t.detach().clone() for name, t in owner.updated.items()}
    owner.step_late(RULE, {})
    for name, value in before.items():
        assert torch.equal(owner.updated[name], value), name

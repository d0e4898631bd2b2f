"""What is updated while the backward still runs is right, or undone bit for bit."""

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.offload.host import OnHost
from helpers.parallel.offload.speculate import Speculative, speculative
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Mixed
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules import one_f_one_b
from helpers.precision.scaling import LossScale
from tests.parallel.beside import GPT2, ODD, RULE, Case, apart, flat, frozen, hold
from tests.parallel.experts import ExpertConfig, expert_parallel

pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")
EXACT = Mixed(low=torch.float64)
SCALED = Mixed(torch.float64, scale=LossScale(scale=2.0, interval=2))
OWNERS = {
    "pending": Local,
    "DDP": Replicated,
    "1": Zero1,
    "2": Zero2,
    "2, flying": partial(Zero2, in_flight=1),
    "3": Zero3,
}
AT_TIMES = replace(RULE, clip=1.9)  # it clips some steps
RULES = cycle((RULE, replace(RULE, clip=None), AT_TIMES))
PRECISIONS = cycle((EXACT, OnHost(), OnHost(SCALED), SCALED))


def slow(owner):
    """An owner whose early updates last long, so that a missing wait shows."""
    made = speculative(owner)

    def later(self, name, gradient):
        time.sleep(0.003)
        made.update_early(self, name, gradient)

    return type("Slow", (made,), {"update_early": later})


def ahead(
    owner, config=ODD, layout=None, *, recipe=None, precision=EXACT, make=speculative, **rest
):
    recipe = replace(recipe or Recipe(), owner=make(owner), precision=precision)
    if "transform" in rest:
        recipe = replace(recipe, transform=rest.pop("transform"))
    return Case(recipe, config, layout, **rest)


CASES = {
    **{f"{o.__name__}, slow": ahead(o, layout={"dp": n}, make=slow, optimizer=AT_TIMES)
       for n, o in ((1, Local), (2, Zero3))},
    **{f"{name}, {n} ranks, {m}": ahead(OWNERS[name], GPT2, {"dp": n}, sequences=7, micro_batches=m,
                                        optimizer=next(RULES), precision=next(PRECISIONS))
       for name, n, m in (("pending", 2, 1), ("DDP", 2, 3), ("1", 2, 1), ("1", 3, 2), ("2", 2, 3),
                          ("2, flying", 3, 2), ("3", 2, 3))},
    "half frozen": ahead(Zero3, GPT2, transform=frozen("attention", "norm"),
                         alone=Recipe(transform=frozen("attention", "norm"))),
    "experts": ahead(Zero1, ExpertConfig(experts=2), sequences=8, transform=expert_parallel,
                     optimizer=replace(RULE, clip=None)),
    "a pipeline, 2": ahead(Zero2, recipe=Recipe(layout=Layout(pp=2, dp=2), schedule=one_f_one_b),
                           micro_batches=2, optimizer=replace(RULE, clip=None)),
    "sgd": ahead(Zero1, optimizer=OptimizerConfig(rule="sgd", clip=None)),
}  # fmt: skip


BY_RANKS = dict(sorted(CASES.items(), key=lambda item: item[1].ranks))


@pytest.mark.parametrize("case", BY_RANKS.values(), ids=BY_RANKS)
def test_it_equals_one_process(ranks, case):
    hold(ranks, case)


def pair(precision, **rule):
    """One process that speculates, and one that does not."""
    given = {"dtype": torch.float64, "optimizer": OptimizerConfig(**rule)}
    return [
        Recipe(owner=owner, precision=precision)(ODD, 3, **given)
        for owner in (speculative(Local), Local)
    ]


def batch(k):
    return random_batch(k, 4, ODD.context, ODD.vocab)


def same(ours, theirs) -> bool:
    ours, theirs = ours.full_state(), theirs.full_state()
    far = apart(ours["model"], theirs["model"])
    both = [flat(state["optimizer"]) for state in (ours, theirs)]
    return far == 0 and both[0].keys() == both[1].keys() and apart(*both) == 0


def train(both, *, loss=1.0, k=0, **options):
    """Make a step of all, with the loss multiplied by a number."""
    steps = []
    for one in both:
        right = one.model.loss
        one.model.loss = lambda b, right=right: (right(b)[0] * loss, right(b)[1])
        steps.append(one.step(batch(k), **options))
        one.model.loss = right
    return steps


@pytest.mark.parametrize(("clip", "rollbacks"), [(None, 0), (1e9, 0), (1e-3, 3)])
def test_it_rolls_back_a_step_that_clips_and_no_other(clip, rollbacks):
    both = ours, theirs = pair(EXACT, clip=clip)
    for k in range(3):
        train(both, k=k, lr=1e-3 * (k + 1))
        assert same(ours, theirs)
        assert apart(ours.full_gradients(), theirs.full_gradients()) == 0
        assert not ours.owner.kept
    assert ours.owner.rollbacks == rollbacks


def test_it_rolls_back_a_step_that_clips_a_little():
    norm = float(train(pair(EXACT, clip=None))[0].grad_norm)
    both = ours, theirs = pair(EXACT, clip=0.9 * norm)
    train(both)
    assert same(ours, theirs)
    assert ours.owner.rollbacks == 1
    ours.owner.roll_back()
    assert ours.owner.rollbacks == 1, "nothing was left to roll back"


def test_it_rolls_back_a_step_that_is_skipped():
    """A gradient overflows: the first step has no moments to give back, the third has."""
    both = ours, theirs = pair(Mixed(torch.float64, scale=LossScale(scale=2.0**10)), clip=None)
    for k, factor in enumerate((1e308, 1.0, 1e308, 1.0)):
        assert all(step.skipped == (factor > 1) for step in train(both, loss=factor, k=k))
        assert same(ours, theirs)
    assert ours.owner.rollbacks == 2


def fails(*_):
    raise ArithmeticError("it fails")


@contextmanager
def in_the_backward(ours):
    handle = ours.model.embedding.weight.register_hook(fails)  # the last of the backward
    yield
    handle.remove()


@contextmanager
def in_an_update(ours):
    real = Speculative.advance_only

    def broken(self, names):
        real(self, names)  # the tensor has changed already
        if names == {"norm.weight"}:
            fails()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Speculative, "advance_only", broken)
        yield


@contextmanager
def in_the_norm(ours):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours.owner, "norm", fails)
        yield


@pytest.mark.parametrize("where", [in_the_backward, in_an_update, in_the_norm])
def test_a_step_that_fails_is_rolled_back_at_once(where):
    both = ours, theirs = pair(EXACT, clip=None)
    train(both)
    with where(ours), pytest.raises(ArithmeticError, match="it fails"):
        ours.step(batch(1))
    assert same(ours, theirs)
    assert ours.owner.rollbacks == 1
    train(both, k=1)
    assert same(ours, theirs)


def test_it_does_update_while_the_backward_runs(monkeypatch):
    """The last gradient waits until another tensor has been updated."""
    both = ours, theirs = pair(EXACT, clip=None)
    updated, seen = threading.Event(), []
    real = Speculative.update_early

    def told(self, name, gradient):
        real(self, name, gradient)
        updated.set()

    monkeypatch.setattr(Speculative, "update_early", told)
    ours.model.embedding.weight.register_hook(lambda _: seen.append(updated.wait(10)))
    train(both)
    assert seen == [True]
    assert same(ours, theirs)
    trace = ours.owner.trace
    assert {span.name for span in trace.of("update")} == set(ours.parameters)
    assert 0 < trace.overlap("update", "forward and backward") <= trace.busy("update")
    assert "forward and backward, 1 boxes" in ours.owner.timeline().alt
    ours.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        ours.owner.thread.submit(print)


def test_the_sums_after_the_backward_find_no_running_update(monkeypatch):
    """An update takes its gradient from the parameter, which the sums read and write."""
    ours = Recipe(owner=slow(Local), precision=EXACT)(ODD, 3, dtype=torch.float64)
    real, ended = Local.sum_what_is_left, []

    def told(self, done):
        ended.append([update.done() for update in self.early.values()])
        real(self, done)

    monkeypatch.setattr(Local, "sum_what_is_left", told)
    ours.step(batch(0))
    assert ended == [[True] * len(ours.parameters)]

"""What is updated while the backward still runs is right, or undone bit for bit."""

import threading
from dataclasses import replace
from functools import partial
from itertools import cycle

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.offload.disk import on_disk
from helpers.parallel.offload.host import OnHost
from helpers.parallel.offload.speculate import Speculative, speculative
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Mixed, Plain
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
RULES = cycle((RULE, replace(RULE, clip=None), replace(RULE, clip=1.9)))  # 1.9 clips some steps
PRECISIONS = cycle((EXACT, OnHost(), OnHost(SCALED), SCALED))


def ahead(owner, config=ODD, layout=None, *, recipe=None, precision=EXACT, **rest):
    recipe = replace(recipe or Recipe(), owner=speculative(owner), precision=precision)
    if "transform" in rest:
        recipe = replace(recipe, transform=rest.pop("transform"))
    return Case(recipe, config, layout, **rest)


CASES = {
    **{f"one process, {name}": ahead(Local, GPT2, {"dp": 1}, optimizer=rule, micro_batches=2)
       for name, rule in zip(("clipped", "not clipped", "clipped at times"), RULES, strict=False)},
    **{f"{name}, {n} ranks": ahead(o, GPT2, {"dp": n}, sequences=7, micro_batches=m,
                                   optimizer=next(RULES), precision=next(PRECISIONS))
       for name, o in OWNERS.items() for n, m in ((2, 1), (2, 3), (3, 2))},
    "3, 4 ranks": ahead(Zero3, layout={"dp": 4}, precision=OnHost(), optimizer=next(RULES)),
    "half frozen": ahead(Zero3, GPT2, transform=frozen("attention", "norm"),
                         alone=Recipe(transform=frozen("attention", "norm"))),
    "experts": ahead(Zero1, ExpertConfig(experts=2), sequences=8, transform=expert_parallel,
                     optimizer=replace(RULE, clip=None)),
    "a pipeline": ahead(Local, recipe=Recipe(layout=Layout(pp=2), schedule=one_f_one_b),
                        micro_batches=4, optimizer=replace(RULE, clip=None)),
    "a pipeline, 2": ahead(Zero2, recipe=Recipe(layout=Layout(pp=2, dp=2), schedule=one_f_one_b),
                           micro_batches=4, optimizer=replace(RULE, clip=None)),
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


@pytest.mark.parametrize(("clip", "undone"), [(None, 0), (1e9, 0), (1e-3, 3)])
def test_it_undoes_a_step_that_clips_and_no_other(clip, undone):
    ours, theirs = pair(EXACT, clip=clip)
    for k in range(3):
        for one in (ours, theirs):
            one.step(batch(k), lr=1e-3 * (k + 1))
        assert same(ours, theirs)
        assert apart(ours.full_gradients(), theirs.full_gradients()) == 0
        assert not ours.owner.copies
    assert ours.owner.undone == undone


def test_it_undoes_a_step_that_is_skipped():
    """A gradient overflows: the first step has no moments to give back, the third has."""
    ours, theirs = pair(Mixed(torch.float64, scale=LossScale(scale=2.0**10)), clip=None)
    for k, factor in enumerate((1e308, 1.0, 1e308, 1.0)):
        for one in (ours, theirs):
            right = one.model.loss
            one.model.loss = lambda b, right=right, f=factor: (right(b)[0] * f, right(b)[1])
            step = one.step(batch(k))
            one.model.loss = right
            assert step.skipped == (factor > 1)
        assert same(ours, theirs)
    assert ours.owner.undone == 2


def test_a_step_that_fails_in_its_backward_is_undone_by_the_next():
    ours, theirs = pair(EXACT, clip=None)
    for k in range(2):
        ours.step(batch(k)), theirs.step(batch(k))

    def fails(*_):
        raise ArithmeticError

    handle = ours.model.embedding.weight.register_hook(fails)  # the last of the backward
    with pytest.raises(ArithmeticError):
        ours.step(batch(2))
    handle.remove()
    assert ours.owner.guesses
    ours.step(batch(2)), theirs.step(batch(2))
    assert same(ours, theirs)
    assert ours.owner.undone == 1


def test_it_does_update_while_the_backward_runs(monkeypatch):
    """The last gradient waits until another tensor has been updated."""
    ours, theirs = pair(EXACT, clip=None)
    updated, seen = threading.Event(), []
    real = Speculative.advance_one

    def told(self, name, gradient):
        real(self, name, gradient)
        updated.set()

    monkeypatch.setattr(Speculative, "advance_one", told)
    ours.model.embedding.weight.register_hook(lambda _: seen.append(updated.wait(10)))
    ours.step(batch(0)), theirs.step(batch(0))
    assert seen == [True]
    assert same(ours, theirs)
    spans = ours.owner.spans
    trained = set(ours.parameters)
    assert {span.name for span in spans if span.lane == "update"} == trained
    [backward] = [span for span in spans if span.lane != "update"]
    assert any(span.end < backward.end for span in spans if span is not backward)
    assert "forward and backward, 1 boxes" in ours.owner.timeline().alt
    ours.close()


def test_an_update_that_fails_is_raised_and_undone(monkeypatch):
    ours, theirs = pair(EXACT, clip=None)
    before = ours.full_state()

    def fails(*_):
        raise ArithmeticError("no host")

    optimizer = ours.owner.alone["norm.weight"]
    monkeypatch.setattr(optimizer, "step", fails)
    with pytest.raises(ArithmeticError, match="no host"):
        ours.step(batch(0))
    monkeypatch.undo()
    ours.step(batch(0)), theirs.step(batch(0))
    assert same(ours, theirs)
    assert apart(ours.full_state()["model"], before["model"]) > 0


def test_it_needs_master_copies_in_memory(tmp_path):
    both = [(Local, Plain()), (on_disk(folder=tmp_path), EXACT)]
    for owner, precision in both:
        with pytest.raises(ValueError, match="needs master copies in memory"):
            Recipe(owner=speculative(owner), precision=precision)(ODD)

"""What a pipeline's engine reports to an owner: units, gradients, and when the loss is sent."""

from collections import Counter

import pytest
import torch

from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.units import units
from helpers.plans.schedules import one_f_one_b
from helpers.plans.schedules.plain import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from tests.parallel.pipeline.doubles import (
    EVERY,
    SCHEDULES,
    Owner,
    alone,
    batch_of,
    expected,
    gradients,
    links,
    made,
    step,
)
from tests.parallel.threads import Ranks, one_thread


@pytest.fixture(autouse=True)
def _links(monkeypatch):
    links(monkeypatch)
    with one_thread():
        yield


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_an_owner_hears_of_each_unit_and_of_each_gradient(schedule):
    """A gradient is the last one of its parameter after every use in every micro-batch."""
    together, m = Ranks(schedule.ranks), schedule.micro_batches
    last = schedule.stages - 1

    def run(rank):
        one = made(schedule, together, rank, wants=EVERY)
        for number in range(2):  # the second step counts again
            one.owner.log.clear()
            step(one, batch_of(5, number), m)
        log, names = one.owner.log, {unit.name for unit in units(one.model)}
        uses = Counter(id(p) for stage in one.stages.values() for p in stage.parameters())
        for name, p in one.owner.parameters.items():
            reports = [entry[2] for entry in log if entry[:2] == ("gradient", name)]
            assert reports == [False] * (m * uses[id(p)] - 1) + [True], name
        shared = [name for name, p in one.owner.parameters.items() if uses[id(p)] == 2]
        open_units = set()
        for call, name, *_ in log:
            if call == "before":
                assert name not in open_units
                open_units.add(name)
            elif call == "after":
                open_units.remove(name)
            elif call == "gradient" and name not in shared:
                assert any(name.startswith(f"{unit}.") for unit in open_units), name
        assert not open_units
        calls = Counter(name for call, name, *_ in log if call == "before")
        for name in names:
            number = int(name.split(".")[0])
            wanted = (3 if schedule.split and number else 2) * m
            tied = shared and name in ("0.embedding", f"{last}.head")
            assert tied or calls[name] == wanted, (name, calls[name])
        return [place - len(log) for place, entry in enumerate(log) if entry[0] == "sent"]

    # No sum is under way during the first computation: see Execution.
    assert list(together.run(run)) == [[-1]] * together.size


def test_an_owner_may_want_units_or_gradients_alone():
    for wants, words in (({"units"}, {"before", "after"}), ({"gradients"}, {"gradient"})):
        for schedule in (interleaved(1, 2, chunks=2), zero_bubble_v(1, 2)):
            one = alone(schedule, wants=wants)
            step(one, batch_of(2), 2)
            assert {entry[0] for entry in one.owner.log} == words | {"sent"}


def test_a_frozen_parameter_is_not_reported():
    schedule = interleaved(1, 2, chunks=2)
    model = alone(schedule, wants=EVERY).model
    frozen = model["1"].norm.weight.requires_grad_(False)
    one = Pipeline(model, Owner(model, EVERY))
    step(one, batch_of(2), 2)
    reported = {entry[1] for entry in one.owner.log if entry[0] == "gradient"}
    assert reported == one.owner.parameters.keys() - {"1.norm.weight"}
    assert frozen.grad is None


def test_a_unit_with_a_parameter_that_is_not_used_ends_with_its_stage():
    """No gradient comes of it, and no last one is reported."""
    model = alone(interleaved(1, 2, chunks=2)).model
    model["1"].norm.register_parameter("unused", torch.nn.Parameter(torch.ones(1)))
    one = Pipeline(model, Owner(model, EVERY))
    step(one, batch_of(2), 2)
    log = [entry[:2] for entry in one.owner.log]
    assert log.count(("before", "1.norm")) == log.count(("after", "1.norm")) == 4
    assert ("gradient", "1.norm.unused") not in log


def test_after_close_nothing_is_reported():
    one = alone(interleaved(1, 2, chunks=2), wants=EVERY)
    one.close()
    step(one, batch_of(2), 2)
    assert [entry[0] for entry in one.owner.log] == ["sent"]


def test_a_step_after_one_that_failed():
    """The second micro-batch fails: what is missing of it is missing for ever."""
    one = alone(one_f_one_b(1, 2), wants=EVERY)
    calls = []

    def fail(_):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("in the backward")

    hook = one.stages[0].blocks["2"].attention.out.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="in the backward"):
        step(one, batch_of(2), 2)
    hook.remove()
    one.owner.log.clear()
    one.model.zero_grad()
    step(one, batch_of(2), 2)
    counts = Counter(entry[:2] for entry in one.owner.log)
    for unit in units(one.model):
        if unit.name != "0.embedding":  # tied
            assert counts["before", unit.name] == counts["after", unit.name] == 4
    last = [entry[1] for entry in one.owner.log if entry[0] == "gradient" and entry[2]]
    assert sorted(last) == sorted(one.owner.parameters)
    for name, right in expected(batch_of(2))[1].items():
        torch.testing.assert_close(gradients(one)[name], right, rtol=0, atol=1e-12)

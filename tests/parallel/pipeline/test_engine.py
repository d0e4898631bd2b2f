"""Evaluations, buffers and messages of a pipeline; its ranks are threads."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from helpers.data.batch import random_batch
from helpers.models.gpt import build
from helpers.parallel.pipeline import engine
from helpers.parallel.pipeline.engine import OneStep
from helpers.plans.schedules import Action, one_f_one_b
from helpers.plans.schedules.plain import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from tests.parallel.pipeline.doubles import (
    CONFIG,
    VOCAB,
    D,
    T,
    alone,
    batch_of,
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


def test_an_evaluation_without_sequences_sends_nothing_and_has_no_loss():
    """A replica may have no part of a batch."""
    together, schedule, batch = Ranks(3), one_f_one_b(3, 4), batch_of(1).micro(2)[1]
    assert len(batch) == 0
    runs = together.run(lambda rank: made(schedule, together, rank).evaluate(batch))
    assert [(float(total), int(count)) for total, count in runs] == [(0, 0)] * 3
    assert not any(together.messages.values())


def test_an_evaluation_sends_contiguous_messages(monkeypatch):
    """Whatever strides a stage's output has. `Link` refuses others."""
    plain = engine.forward

    def strided(*arguments):
        return plain(*arguments).transpose(0, 1).contiguous().transpose(0, 1)

    monkeypatch.setattr(engine, "forward", strided)
    together, schedule, batch = Ranks(3), one_f_one_b(3, 4), batch_of(3)
    runs = together.run(lambda rank: made(schedule, together, rank).evaluate(batch))
    wanted = build(CONFIG, dtype=torch.float64).eval().loss(batch)[0].item()
    assert runs[-1][0].item() == pytest.approx(wanted, abs=1e-12)


def test_a_failed_evaluation_leaves_the_mode_as_it_was():
    one = alone(interleaved(1, 2, chunks=2))
    batch = batch_of(2)
    with pytest.raises(IndexError):
        one.evaluate(replace(batch, targets=batch.targets + VOCAB))
    assert all(module.training for module in one.model.modules())


def test_which_backwards_are_divided():
    schedule = zero_bubble_v(2, 2)
    for rank, divided in enumerate(([3], [1, 2])):
        one = made(schedule, Ranks(2), rank)
        assert list(one.two_parts) == divided
        assert one.two_parts is one.two_parts
        assert all(one.two_parts[n].parameters == list(one.stages[n].parameters()) for n in divided)
        again = replace(CONFIG, recompute="full")
        assert made(schedule, Ranks(2), rank, again).two_parts == {}
        some = replace(CONFIG, recompute="selective")
        assert list(made(schedule, Ranks(2), rank, some).two_parts) == divided
    assert alone(interleaved(1, 2, chunks=2)).two_parts == {}


class Counted(torch.nn.Module):
    """A criterion that multiplies by 0 where no target counts."""

    def forward(self, logits, targets):
        counted = targets != -100
        return (logits.logsumexp(-1) * counted).sum(), counted.sum()


def test_no_target_at_all():
    """The sum of the losses is 0, and so are the gradients: they are not divided by 0."""
    one = alone(interleaved(1, 2, chunks=2))
    one.stages[1].criterion = Counted()
    assert step(one, batch_of(2, ignored=1.0), 2) == 0
    assert all(not gradient.any() for gradient in gradients(one).values())


def test_the_number_of_micro_batches_is_the_schedules():
    one = alone(one_f_one_b(1, 3))
    for m in (2, 4):
        with pytest.raises(ValueError, match=rf"has 3 micro-batches, .* into {m}: .*batches=3"):
            step(one, batch_of(4), m)


def test_buffers_are_those_of_the_first_step():
    one = alone(one_f_one_b(1, 2))
    micros = batch_of(5).micro(2)
    buffers = one.fitting(micros)
    assert (buffers.numel, buffers.dtype, buffers.device) == (3 * T * D, torch.float64,
                                                              torch.device("cpu"))  # fmt: skip
    assert one.fitting(batch_of(3).micro(2)) is buffers
    assert one.fitting(micros) is buffers
    words = "has 4 sequences of 6 tokens, but .* at most 3 sequences of 6 tokens"
    with pytest.raises(ValueError, match=words):
        one.fitting(batch_of(7).micro(2))
    for length in (T - 1, T + 1):
        other = random_batch(0, 4, length, VOCAB).micro(2)
        with pytest.raises(ValueError, match=f"has 2 sequences of {length} tokens"):
            one.fitting(other)
    assert one.fitting(micros) is buffers


class Turned(torch.nn.Module):
    """A stage whose output and whose input's gradient are not contiguous."""

    first = last = False

    def locate(self, tokens, **options):
        return options

    def forward(self, x, positions):
        assert positions.keys() == {"numbers", "step", "documents"}
        return x.transpose(1, 2)

    def extra(self):
        return 0


def test_messages_are_contiguous_and_without_a_graph():
    batch = batch_of(2)
    stage = SimpleNamespace(stages={1: Turned()}, last=2, two_parts={}, watched={1: []})
    work = OneStep(stage, [batch], None, None)
    x = torch.randn(2, 3, 4)
    y = work.compute(Action("F", 1, 0), x)
    assert y.is_contiguous()
    assert not y.requires_grad
    assert torch.equal(y, x.transpose(1, 2))
    gradient = torch.randn(2, 4, 3)
    assert not x.requires_grad
    found = work.compute(Action("B", 1, 0), gradient)
    assert found.is_contiguous()
    assert torch.equal(found, gradient.transpose(1, 2))
    assert not work.inputs
    assert not work.outputs

    work.two_parts = {1: SimpleNamespace(first=lambda edge, x, g: (g.transpose(1, 2), []))}
    work.compute(Action("F", 1, 0), x)
    found = work.compute(Action("I", 1, 0), gradient)
    assert found.is_contiguous()
    assert torch.equal(found, gradient.transpose(1, 2))

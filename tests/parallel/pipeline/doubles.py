"""An engine of a pipeline with an owner that takes notes; its ranks are threads."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig, build
from helpers.parallel.pipeline import engine
from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.pipeline.stages import pipeline
from helpers.parallel.world import GlobalSum
from helpers.plans.schedules import gpipe, one_f_one_b
from helpers.plans.schedules.plain import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v
from tests.parallel.threads import Link, Ranks

VOCAB, T, D = 11, 6, 8
CONFIG = GPTConfig(vocab=VOCAB, context=T, width=D, layers=6, heads=2, dropout=0.2)
SCALE = 8.0
EVERY = frozenset({"units", "gradients"})


@dataclass
class Mesh:
    layout: Layout
    rank: int
    link: Link


class Owner:
    """Notes what the engine reports."""

    def __init__(self, model, wants):
        self.parameters = dict(model.named_parameters())
        self.wants, self.log = wants, []
        self.precision = SimpleNamespace(loss_scale=SCALE)

    def before(self, unit):
        self.log.append(("before", unit.name))

    def after(self, unit):
        self.log.append(("after", unit.name))

    def gradient(self, name, last):
        self.log.append(("gradient", name, last))


class Loss(GlobalSum):
    def __init__(self, log):
        super().__init__([], "cpu")
        self.log = log

    def send(self):
        self.log.append(("sent", self.total.item()))
        return super().send()


def made(schedule, together, rank, config=CONFIG, wants=frozenset()):
    mesh = Mesh(Layout(pp=schedule.ranks), rank, Link(together, rank))
    model = pipeline(config, 0, mesh, torch.float64, schedule=schedule).model
    model.to_empty(device="cpu")
    plain = dict(build(config, dtype=torch.float64).named_parameters())
    with torch.no_grad():
        for stage in model.values():
            for name, p in stage.named_parameters():
                p.copy_(plain[stage.plain_name(name)])
    return Pipeline(model, Owner(model, wants))


def alone(schedule, **options):
    return made(schedule, Ranks(1), 0, **options)


def batch_of(sequences, seed=0, **options):
    batch = random_batch(seed, sequences, T, VOCAB, **options)
    return replace(batch, step=3, numbers=torch.arange(sequences) + 40)


def step(one, batch, m):
    """One step; the loss of this rank's stages."""
    loss = Loss(one.owner.log)
    tokens = GlobalSum([], "cpu", batch.counted())
    one.step(batch.micro(m), tokens, loss)
    assert one.link.leaving == []
    return loss.total.item()


def gradients(one):
    """By plain name, of this rank's stages."""
    found = {}
    for name, p in one.owner.parameters.items():  # a tied one is there once
        number, _, own = name.partition(".")
        if p.grad is not None:
            found[one.stages[int(number)].plain_name(own)] = p.grad.clone()
    return found


def expected(batch, config=CONFIG):
    """Loss sum, and the gradients of the scaled mean, of the plain model."""
    model = build(config, dtype=torch.float64)
    total, count = model.loss(batch)
    (SCALE * total / count).backward()
    return total.item(), {name: p.grad for name, p in model.named_parameters()}


SCHEDULES = {
    "one rank, three stages": interleaved(1, 4, chunks=3),
    "GPipe": gpipe(2, 4),
    "1F1B": one_f_one_b(3, 4),
    "interleaved": interleaved(2, 4, chunks=2),
    "ZB-H1": zero_bubble_h1(3, 4),
    "ZB-V": zero_bubble_v(2, 4),
}


def links(monkeypatch):
    """Let an engine send along "pp" with the link of its mesh."""
    monkeypatch.setattr(engine, "between_neighbours", lambda mesh, axis: {"pp": mesh.link}[axis])

"""Measured spans of training, and what a step sends, by axis."""

from collections import Counter

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.trainer import Recipe
from helpers.plans.schedules import one_f_one_b
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from helpers.runtime.cluster import Cluster
from helpers.state.shares import shares

CONFIG = GPTConfig(vocab=32, context=12, width=24, layers=4, heads=4)
B, T, D = 8, 12, 24
SMALL = range(64)  # bytes of the ranks' agreement on dtypes, before a tied gradient is summed


@pytest.fixture(scope="module")
def four():
    with Cluster(workers=4, device="cpu") as cluster:
        yield cluster


def train(worker, schedule, m):
    torch.set_num_threads(1)
    recipe = Recipe(layout=Layout(pp=2, dp=2), schedule=schedule)
    trainer = recipe(CONFIG, micro_batches=m)
    trainer.step(random_batch(0, B // 2, T, CONFIG.vocab))
    made = trainer.engine.buffers.made
    with ledger() as log:
        trainer.step(random_batch(0, B // 2, T, CONFIG.vocab))
    held = shares(trainer.parts.ranks, "embedding.weight")
    return {
        "spans": trainer.engine.spans,
        "made": (made, trainer.engine.buffers.made),
        "log": log,
        "holders": [bool(boxes) for boxes in held.boxes],
        "last": shares(trainer.parts.ranks, "norm.weight").rows(),
    }


@pytest.mark.parametrize(("schedule", "stages"), [(one_f_one_b, 2), (zero_bubble_v, 4)])
def test_a_step_sends_each_activation_and_each_gradient_once(four, schedule, stages):
    m = 4
    runs = four.run(train, schedule=schedule, m=m)
    borders = stages - 1 - (stages == 4)  # the V's turn is on one rank
    one = (B // 2 // m) * T * D * 4  # bytes of a float32 message
    for rank, run in enumerate(runs):
        calls = Counter((row["call"], row["axes"]) for row in run["log"].rows())
        assert {("send", "pp"), ("recv", "pp")} <= calls.keys()
        # of each border, one rank sends the activations, and the other the gradients
        sends = [e for e in run["log"].entries if (e.call, e.axes) == ("send", "pp")]
        assert sum(entry.payload == one for entry in sends) == m * borders
        assert all(entry.payload in (one, *SMALL) for entry in sends)
        order = schedule(2, m).orders[rank // 2]
        assert tuple(span.action for span in run["spans"]) == order
        assert all(a.stop <= b.start for a, b in zip(run["spans"], run["spans"][1:], strict=False))
        assert run["made"][0] == run["made"][1]  # the second step makes no buffer


def test_few_buffers_and_one_axis_pays_for_each_byte(four):
    runs = four.run(train, schedule=one_f_one_b, m=4)
    # rank 0 receives gradients alone: one in use, one posted ahead
    assert [run["made"][0] for run in runs] == [2, 2, 2, 2]
    rows = {(row["call"], row["axes"]): row for row in runs[0]["log"].rows()}
    assert rows["all_reduce", "dp"]["payload"] > 4 * D * D  # gradients
    assert runs[0]["holders"] == [True] * 4  # tied: on the first and on the last stage
    assert [text for _, text in runs[0]["last"]] == ["nothing", "nothing", ":", ":"]

"""Stage 2: a row leaves when its unit's backward has ended, and its memory is free for the next."""

import warnings
from collections import Counter
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import SharedTransport
from helpers.data.batch import random_batch
from helpers.parallel.precision import Mixed
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.film import filming
from helpers.parallel.zero.stage2 import Zero2
from helpers.runtime.launch import launch
from tests.parallel.zero.beside import BEGUN, PUBLISHED, UNTIED, UPDATED, lines, told

pytestmark = [
    pytest.mark.usefixtures("kept_ranks"),
    pytest.mark.filterwarnings("ignore:ZeRO stage"),
]


BACKWARD = """
    head gradients filling; head gradients sending; > scatter 396
    < scatter 396; head gradients freed; head gradient shard held
    norm gradients filling; norm gradients sending; > scatter 12
    < scatter 12; norm gradients freed; norm gradient shard held
    blocks.0 gradients filling; blocks.0 gradients sending; > scatter 1752
    < scatter 1752; blocks.0 gradients freed; blocks.0 gradient shard held
    embedding gradients filling; embedding gradients sending; > scatter 396
    < scatter 396; embedding gradients freed; embedding gradient shard held
"""


def test_each_micro_batch_sends_and_frees_one_row_after_the_other():
    for first, step, evaluation in launch(told, 3, device="cpu", owner=Zero2, micro_batches=2):
        assert first == step == BEGUN + 2 * lines(BACKWARD) + UPDATED + PUBLISHED
        assert evaluation == []


def test_a_row_in_flight_arrives_before_its_next_gradients():
    """The first micro-batch leaves all four rows in flight."""
    sent = """> 396; > 12; > 1752; > 396
              < 396; > 396; < 12; > 12; < 1752; > 1752; < 396; > 396
              < 396; < 12; < 1752; < 396"""
    owner = partial(Zero2, in_flight=9)
    for _, step, _ in launch(told, 3, device="cpu", owner=owner, micro_batches=2):
        found = [line.replace("scatter ", "") for line in step if "scatter" in line]
        assert found == lines(sent)
    sent = "> 396; > 12; < 396; > 1752; < 12; > 396; < 1752; < 396"
    for _, step, _ in launch(told, 3, device="cpu", owner=partial(Zero2, in_flight=1)):
        found = [line.replace("scatter ", "") for line in step if "scatter" in line]
        assert found == lines(sent)


def buffers(worker):
    """The numbers of the buffers that two steps of two micro-batches needed."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    owner = partial(Zero2, transport=SharedTransport)
    trainer = Recipe(owner=owner)(UNTIED, 0, mesh, micro_batches=2)
    for _ in range(2):
        trainer.step(random_batch(worker.rank, 2, 8, 33))
    found = [buffer.numel() for buffer in next(iter(trainer.owner.pools.values())).buffers]
    trainer.close()
    return found


def test_all_rows_share_one_buffer_as_large_as_the_largest():
    assert list(launch(buffers, 3, device="cpu")) == [[1752]] * 3


def shards(worker, micro_batches):
    """Bytes of this rank's shards of gradients before the update, of rows in bf16."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    trainer = Recipe(owner=Zero2, precision=Mixed())(UNTIED, 0, mesh, micro_batches=micro_batches)
    with filming(trainer.owner) as film:
        trainer.step(random_batch(worker.rank, 2, 8, 33))
    events = [e for e in film.events if e["kind"] == "gradient shard" and e["state"] == "held"]
    return sum(Counter({e["unit"]: e["bytes"] for e in events[: 4 * (micro_batches + 1)]}).values())


@pytest.mark.parametrize(("micro_batches", "each"), [(1, 2), (2, 4)])
def test_several_micro_batches_are_added_in_the_dtype_of_the_master_copies(micro_batches, each):
    found = launch(shards, 3, device="cpu", micro_batches=micro_batches)
    assert list(found) == [each * 2556 // 3] * 3


def warned(worker, micro_batches):
    mesh = make_mesh(Layout(dp=worker.world_size))
    trainer = Recipe(owner=Zero2)(UNTIED, 0, mesh, micro_batches=micro_batches)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            trainer.step(random_batch(worker.rank, 3, 8, 33))
    return [str(w.message) for w in caught if "ZeRO" in str(w.message)]


@pytest.mark.parametrize(("ranks", "micro_batches", "count"), [(3, 3, 1), (3, 1, 0), (1, 2, 0)])
def test_a_message_says_once_when_stage_1_is_cheaper(ranks, micro_batches, count):
    first, *others = launch(warned, ranks, device="cpu", micro_batches=micro_batches)
    assert len(first) == count
    assert all("ZeRO stage 2 sends" in text and "Stage 1 sends them once" in text for text in first)
    assert not any(others)

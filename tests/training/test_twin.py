"""The twin passes what is right, and names what is wrong: classic mistakes, planted on purpose.

A mistake is a DataParallel with one part replaced. Each must be found, at the right step, with the
right kind: a start, a loss, a gradient or a parameter.
"""

import sys

import pytest
import torch

from helpers.comm.transport import SharedTransport
from helpers.models.gpt import GPTConfig, loss_sum
from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.optimizer import OptimizerConfig, clip
from helpers.parallel.strategy import Step
from helpers.training.twin import compare

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)
BUCKETS = {"bucket_cap_mb": 2000 / 2**20}


def twin(strategy=DataParallel, **changes):
    return compare(strategy, **{"config": TINY, "steps": 4, "device": "cpu", **changes})


@pytest.mark.parametrize(
    ("replica", "options"),
    [(NaiveDDP, {}), (BucketedDDP, BUCKETS), (DDP, BUCKETS), (DDP, {})],
    ids=["naive", "bucketed", "overlapped", "one bucket"],
)
def test_data_parallel_is_exact(replica, options):
    comparison = twin(workers=2, steps=20, replica=replica, **options)
    assert comparison, comparison
    assert comparison.worst("parameter") < 1e-13


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 1},
        {"workers": 3, "micro_batches": 2},
        {"workers": 4, "sequences": 3},  # rank 3 has no data at all
        {"workers": 2, "sequences": 1, "micro_batches": 3},  # nor have most micro-batches
        {"optimizer": OptimizerConfig(rule="sgd", lr=0.1, clip=None)},
        {"optimizer": OptimizerConfig(clip=0.01)},
        {
            "config": GPTConfig(
                vocab=32,
                context=8,
                width=16,
                layers=2,
                heads=4,
                kv_heads=2,
                norm="layer",
                positions="learned",
                mlp="gelu",
                tied=False,
                bias=True,
                attention="explicit",
                recompute="full",
            )
        },
    ],
    ids=["one", "three", "an empty rank", "empty micro-batches", "sgd", "clipped", "another GPT"],
)
def test_odd_cases_are_exact(changes):
    comparison = twin(**changes)
    assert comparison, comparison


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")
@pytest.mark.parametrize("workers", [2, 3])
def test_buckets_in_shared_memory_are_exact_and_send_nothing_but_the_counts(workers):
    comparison = twin(workers=workers, transport=SharedTransport, **BUCKETS)
    assert comparison, comparison
    for side in comparison.ranks:
        assert side.ledger.wire < 100  # two sums of 8 bytes: the targets and the loss
        assert side.memory.gradients == comparison.twin.memory.gradients


def test_float32_within_its_tolerance():
    comparison = twin(workers=2, steps=20, dtype=torch.float32)
    assert comparison, comparison
    assert comparison.worst("loss") > 0  # it is not float64 in disguise


def test_bf16_messages_say_that_they_are_lossy():
    comparison = twin(workers=2, message_dtype=torch.bfloat16)
    assert "bfloat16" in comparison.lossy
    assert 1e-9 < comparison.worst("gradient") < 1e-2
    assert comparison, comparison


class MeanOfMeans(DataParallel):
    """Each rank divides by its own count: the mean of the ranks' means."""

    def step(self, batch, lr=None):
        self.optimizer.zero_grad()
        loss, count = loss_sum(self.replica(batch.tokens), batch.targets)
        (loss / count / self.data_size).backward()
        self.replica.synchronize()
        sums = torch.stack([loss.detach(), count.double()])
        self.group.all_reduce(sums).wait()
        norm = clip(self.parameters.values(), self.rule.clip)
        self.optimizer.step()
        return Step(loss=sums[0] / sums[1], grad_norm=norm, tokens=int(sums[1]))


class NotReplicated(DataParallel):
    """Each rank starts from numbers of its own."""

    def __init__(self, config, seed, mesh, **options):
        super().__init__(config, seed, mesh, **options)
        if self.data_rank:
            with torch.no_grad():
                self.parameters["blocks.0.attention.query.weight"] += 1e-6


class SameShard(DataParallel):
    """Every rank works on the first part."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.data_rank = 0


class Forgotten(DataParallel):
    """Nothing is ever sent."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.replica.synchronize = lambda: None
        self.replica.syncing = False


class OwnUpdate(DataParallel):
    """Rank 1 forgets the learning rate, so its parameters alone drift away."""

    def step(self, batch, lr=None):
        return super().step(batch, 1e-9 if self.data_rank else lr)


class TwiceAveraged(DataParallel):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.replica.scale = 1 / self.data_size


@pytest.mark.parametrize(
    ("mistake", "what", "step"),
    [
        (NotReplicated, "start", -1),
        (SameShard, "loss", 0),
        (Forgotten, "gradient", 0),
        (MeanOfMeans, "gradient", 0),
        (TwiceAveraged, "gradient", 0),
        (OwnUpdate, "parameter", 0),
    ],
)
def test_a_mistake_is_found_and_named(mistake, what, step):
    comparison = twin(mistake, workers=2, sequences=5)  # the ranks' counts differ at every step
    assert not comparison
    found, row = comparison.first_wrong()
    assert (found, row.step) == (what, step), comparison
    if mistake in (NotReplicated, OwnUpdate):
        assert row.rank == 1
    if mistake is NotReplicated:
        assert "blocks.0.attention.query.weight" in comparison.verdict()


def test_it_reports_memory_bytes_and_time_and_draws_itself():
    comparison = twin(workers=2)
    numbers = comparison.twin.memory.parameters
    for side in comparison.ranks:
        assert side.memory.parameters == numbers
        assert side.memory.gradients == numbers
        # a ring's 2(N-1)/N of the gradients, and 8 bytes each for the count and the loss
        assert side.ledger.wire == numbers + 16
        assert side.memory.activations < comparison.twin.memory.activations
    assert comparison._repr_png_().startswith(b"\x89PNG")
    assert "the same as one process" in repr(comparison)

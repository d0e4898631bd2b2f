"""A slow rank is named by the times of its calls; equal ranks are named as seldom as promised."""

import random
import time

import pytest

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.trainer import Recipe
from helpers.resilience.straggler import straggler, tail
from helpers.runtime.launch import launch

TINY = GPTConfig(vocab=16, context=8, width=8, layers=2, heads=2)


def times(draw, ranks, steps, slower=1.0, slow=None):
    """Two calls a step: all at once at the start, then each after its own work of about 1 s."""

    def work(rank):
        return (slower if rank == slow else 1.0) * draw.lognormvariate(0, 0.1)

    return [[[1e-4, work(rank)] for _ in range(steps)] for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_equal_ranks_are_named_no_more_often_than_promised(ranks):
    """1,000 runs of equal ranks at a promise of 5 %; by chance there may be 5 % + 3 deviations."""
    draw = random.Random(ranks)
    runs = [straggler(times(draw, ranks, 30), alarms=0.05, least=0.0) for _ in range(1000)]
    assert sum(run is not None for run in runs) <= 50 + 3 * 7


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_slow_rank_is_named(ranks):
    draw = random.Random(ranks)
    found = straggler(times(draw, ranks, 30, slower=1.3, slow=1))
    assert (found.rank, found.steps) == (1, 30)
    assert found.late >= 20
    assert 0.2 < found.share < 0.4
    assert found.chance < 1e-3
    assert straggler(times(draw, ranks, 30, slower=1.3, slow=1), least=0.5) is None
    assert straggler(times(draw, ranks, 3, slower=1.3, slow=1), alarms=1e-6) is None


def test_the_tail_of_the_binomial():
    assert tail(0, 10, 0.3) == pytest.approx(1)
    assert tail(10, 10, 0.5) == pytest.approx(2**-10)
    assert tail(9, 10, 0.5) == pytest.approx(11 * 2**-10)


def test_what_cannot_be_compared():
    with pytest.raises(ValueError, match="one rank alone"):
        straggler([[[1.0]]])
    for other in ([[1.0], [1.0]], [[1.0, 2.0]]):
        with pytest.raises(ValueError, match="zip"):
            straggler([[[1.0]], other])


def timed(worker, slow):
    trainer = Recipe(layout=Layout(dp=4))(TINY, 0)
    batch = random_batch(0, 8, TINY.context, TINY.vocab).shard(worker.rank, 4)
    if worker.rank == slow:
        trainer.model.register_forward_pre_hook(lambda *_: time.sleep(0.2))
    found = []
    for _ in range(12):
        with ledger() as log:
            trainer.step(batch)
        found.append([entry.at for entry in log.entries])
    return found


def test_a_slow_rank_of_four_by_the_ledger():
    found = straggler(launch(timed, 4, device="cpu", slow=2))
    assert found.rank == 2
    assert found.share > 0.3

"""The comparison accepts correct strategies, and names classic mistakes planted on purpose.

A mistake is a DataParallel with one method changed. The comparison must find each mistake at the
right step and as the right kind: a start, a loss, a gradient or a parameter.
"""

from dataclasses import replace

import pytest
import torch

from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.libraries.data_parallel import TorchDataParallel
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.world import GlobalSum
from helpers.parallel.zero.stage3 import Zero3
from helpers.training.twin import compare

pytestmark = pytest.mark.usefixtures("kept_ranks")

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def twin(strategy=DataParallel, **changes):
    return compare(strategy, **{"config": TINY, "steps": 3, "device": "cpu", **changes})


def test_an_odd_case_is_exact():
    """A rank without data, empty micro-batches, dropout."""
    config = replace(TINY, dropout=0.2)
    comparison = twin(workers=3, sequences=2, micro_batches=2, config=config)
    assert comparison, comparison
    assert comparison.worst("parameter") < 1e-13
    assert comparison.twin.losses[0] != twin(workers=1).twin.losses[0]


def test_float32_within_its_tolerance():
    comparison = twin(workers=2, steps=6, dtype=torch.float32)
    assert comparison, comparison
    assert comparison.worst("loss") > 0  # the computation is not in float64


def test_bf16_messages_say_that_they_are_lossy():
    comparison = twin(workers=2, steps=6, message_dtype=torch.bfloat16)
    assert "bfloat16" in comparison.lossy
    assert 1e-9 < comparison.worst("gradient") < 1e-2
    assert comparison, comparison
    # well below the bound, but far from exact
    assert 1e-6 < comparison.worst("relative") < comparison.bound / 2
    assert (
        "of how far its parameters moved (gradients are sent as torch.bfloat16)"
        in comparison.verdict()
    )


class MeanOfMeans(DataParallel):
    """Each rank divides by its own count: the mean of the ranks' means."""

    def step(self, batch, lr=None):
        right, own = self.engine.step, GlobalSum([], "cpu", self.data_size * batch.counted())
        self.engine.step = lambda batches, tokens, loss: right(batches, own, loss)
        try:
            return super().step(batch, lr)
        finally:
            self.engine.step = right


class NotReplicated(DataParallel):
    """All ranks but rank 0 start from other parameters."""

    def __init__(self, config, seed, mesh, **options):
        super().__init__(config, seed, mesh, **options)
        if self.data_rank:
            with torch.no_grad():
                self.parameters["blocks.0.attention.query.weight"] += 1e-6


class SameShard(DataParallel):
    """Every rank trains on the first shard."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.data_rank = 0


class Forgotten(DataParallel):
    """The ranks never exchange gradients."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.owner.replica.synchronize = lambda: None
        self.owner.replica.gradient = lambda name, last: None


class OwnUpdate(DataParallel):
    """Rank 1 ignores the learning rate, so its parameters drift away."""

    def step(self, batch, lr=None):
        return super().step(batch, 1e-9 if self.data_rank else lr)


class TwiceAveraged(DataParallel):
    """The gradients are divided by the number of ranks once more."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.owner.replica.scale = 1 / self.data_size


class ForgetsMoments(DataParallel):
    """A load restores the parameters, but not the optimizer's state."""

    def load(self, state):
        super().load({"model": state["model"], "optimizer": {}})


class Still(DataParallel):
    """Computes everything but updates nothing."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.owner.optimizer.step = lambda: None


class HalfAsFast(DataParallel):
    """Trains with half the learning rate."""

    def step(self, batch, lr=None):
        return super().step(batch, self.rule.lr / 2)


class SlowFromTheThirdStep(DataParallel):
    """After two steps it trains with half the learning rate. A new one begins to count again."""

    taken = 0

    def step(self, batch, lr=None):
        self.taken += 1
        return super().step(batch, self.rule.lr / 2 if self.taken > 2 else lr)


# what differs first, and at which step; the place: pass, rank, name, the guess
MISTAKES = {
    NotReplicated: ("start", -1, "start", 1, "blocks.0.attention.query.weight", ""),
    SlowFromTheThirdStep: ("parameter", 2, "update", 0, "embedding.weight", "learning rate"),
    SameShard: ("loss", 0, "loss", 0, "", "No rank has the sequences 3, 4 of the batch"),
    Forgotten: ("gradient", 0, "gradient", 0, "norm.weight", "Is a sum over dp missing?"),
    MeanOfMeans: ("gradient", 0, "backward", 0, "head", "Is it divided by another count"),
    TwiceAveraged: ("gradient", 0, "gradient", 0, "norm.weight", "half the twin's"),
    OwnUpdate: ("parameter", 0, "update", 1, "embedding.weight", "learning rate or the clipping"),
    Still: ("parameter", 0, "update", 0, "embedding.weight", "have these parameters"),
    ForgetsMoments: ("parameter", 3, "moments", 0, "embedding.weight (step)", "Does `load`"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_named_and_located(mistake):
    # five sequences: the ranks' token counts differ at every step
    comparison = twin(mistake, workers=2, sequences=5, locate=True)
    assert not comparison
    what, step, kind, rank, name, said = MISTAKES[mistake]
    found, row = comparison.first_wrong()
    assert (found, row.step) == (what, step), comparison
    where = comparison.location
    assert (where.kind, where.rank, where.name) == (kind, rank, name), where
    assert said in where.guess
    assert where.step == max(step, 0)
    assert str(where) in repr(comparison)
    if mistake in (NotReplicated, OwnUpdate):
        assert row.rank == 1


@pytest.mark.parametrize("bound", [0.01, 0.999])
def test_a_strategy_that_does_not_train_fails_for_every_bound(bound):
    def still(*arguments, **options):
        strategy = Still(*arguments, **options)
        strategy.lossy, strategy.bound = "on purpose", bound
        return strategy

    # a learning rate so small that every absolute difference is tiny
    comparison = twin(still, workers=2, optimizer=OptimizerConfig(lr=1e-9))
    assert not comparison
    assert comparison.first_wrong()[0] == "parameter"
    assert "the parameters do not change" in comparison.verdict()


def test_a_lossy_one_is_held_to_its_bound():
    comparison = twin(HalfAsFast, workers=2, message_dtype=torch.bfloat16)
    assert not comparison
    assert "of how far the twin moved, more than 0.1" in comparison.verdict()


def test_a_lossy_strategy_without_a_bound_is_refused():
    def careless(*arguments, **options):
        strategy = DataParallel(*arguments, **options)
        strategy.lossy = "somehow"
        return strategy

    with pytest.raises(ValueError, match="set a bound between 0 and 1"):
        twin(careless, workers=2)


def test_a_dtype_without_a_tolerance_goes_by_a_relative_bound():
    comparison = twin(workers=2, dtype=torch.bfloat16, locate=True)
    assert comparison, comparison
    assert comparison.tolerance is None
    assert comparison.location is None  # nothing departs
    still = twin(Still, workers=2, optimizer=OptimizerConfig(lr=1e-5), dtype=torch.bfloat16)
    assert not still, still


def test_the_table_counts_what_is_held_between_steps():
    """A rank of ZeRO 3 holds half of everything, also where nothing is gathered at the moment."""
    own = twin(Recipe(owner=Zero3), workers=2, layout={"dp": 2}, steps=1)
    rows = {what: (alone, most) for what, alone, most in own.table()}
    for kind in ("parameters", "gradients", "optimizer"):
        alone, most = (int(text.replace(",", "")) for text in rows[f"{kind} (bytes)"])
        assert alone / 2 <= most <= alone / 2 + 256, kind  # padding, and AdamW's counts of steps
    library = twin(TorchDataParallel, workers=2, steps=1)  # it reports nothing: measured
    rows = {what: (alone, most) for what, alone, most in library.table()}
    assert rows["gradients (bytes)"][0] == rows["gradients (bytes)"][1] != "0"


def test_it_reports_memory_bytes_and_time_and_draws_itself():
    comparison = twin(workers=2)
    rows = [(row.step, row.loaded) for row in comparison.differences if row.rank == 1]
    assert rows == [(-1, False), *((k, k >= 3) for k in range(5))]
    numbers = comparison.twin.memory.parameters
    for side in comparison.ranks:
        assert side.memory.parameters == numbers
        assert side.memory.gradients == numbers
        # a ring sends 2(N-1)/N of the gradients; the count and the loss are 8 bytes each
        assert side.ledger.wire == numbers + 16
        assert side.memory.activations < comparison.twin.memory.activations
        kinds = {"parameters": numbers, "gradients": numbers, "optimizer": side.memory.optimizer}
        assert side.held == {(kind, "cpu"): size for kind, size in kinds.items()}
    assert comparison._repr_png_()[0].startswith(b"\x89PNG")
    assert "the same as one process" in repr(comparison)

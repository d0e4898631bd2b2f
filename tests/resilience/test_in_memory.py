"""A lost rank gets its shard back from its partner, bit for bit; lost pairs are named."""

import math

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.data_parallel import TorchDataParallel
from helpers.parallel.precision import Mixed
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage3 import Zero3
from helpers.precision.scaling import LossScale
from helpers.resilience.in_memory import InMemory, partners
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.state.seal import BrokenCheckpoint
from tests.parallel.beside import flat

TORN = "torn"
WORDS = {
    (0, 1): "no checkpoint is in memory",
    (1, 2): "the shards of ranks [1] are on no rank",
    (2, 3): "the shards of ranks [2, 3] are on no rank",
}
TINY = GPTConfig(vocab=16, context=8, width=8, layers=2, heads=2)


SCALED = Mixed(torch.float64, scale=LossScale(scale=2.0, interval=2))


def of_pytorch(config, seed):
    return TorchDataParallel(config, seed, make_mesh(Layout(dp=2)))


def bits(strategy) -> dict:
    state = strategy.full_state()
    numbers = flat(state["optimizer"]) | state["model"] | strategy.scale_state()
    return {n: torch.as_tensor(v).clone() for n, v in numbers.items()}


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def survives(worker, recipe, losses):
    """For each list of ranks: save, train on, lose these ranks' memory, restore.

    TORN: a save ends before rank 0 has sent anything, so its partner has nothing new either.
    """
    trainer, memory, found, saved = recipe(TINY, 0), InMemory(), [], []
    batch = random_batch(0, 6, TINY.context, TINY.vocab)

    def step():
        trainer.step(batch.shard(trainer.data_rank, trainer.data_size))

    step()
    for k, lost in enumerate(losses):
        step()
        saved.append(bits(trainer))
        memory.save(trainer, updates=k)
        step()
        if lost == TORN:
            if worker.rank < 2:
                del memory.kept[max(memory.kept)]
        elif worker.rank in lost:
            memory = InMemory()
            _, tensors, moments = trainer.stored()
            for tensor in [*tensors.values(), *(t for s in moments.values() for t in s.values())]:
                tensor.detach().fill_(math.nan)
        try:
            progress = memory.restore(trainer)
            step()  # what training changes is not what is kept
            again = memory.restore(trainer)
            found.append([again == progress, equal(bits(trainer), saved[again["updates"]])])
            found[-1].append(again["updates"])
        except BrokenCheckpoint as error:
            found.append(str(error))
    trainer.close()
    return found


@pytest.mark.parametrize(
    ("layout", "how", "losses"),
    [
        (Layout(dp=2), {"owner": Zero3, "precision": SCALED}, [[], [1], [0], [0, 1]]),
        (Layout(dp=3), {"owner": Zero3}, [[0], [2], TORN, [1, 2]]),
        (Layout(dp=2, tp=2), {}, [[0], [1, 2], [2, 3]]),
        (Layout(dp=2), of_pytorch, [[]]),  # `stored` makes copies
    ],
    ids=["ZeRO 3 on 2, scaled", "ZeRO 3 on 3", "tensor and data", "PyTorch's DDP"],
)
def test_what_a_partner_has_is_restored(layout, how, losses):
    recipe = how if callable(how) else Recipe(layout=layout, **how)
    for found in launch(survives, layout.world_size, device="cpu", recipe=recipe, losses=losses):
        for k, (lost, told) in enumerate(zip(losses, found, strict=True)):
            if isinstance(told, str):
                assert told.startswith(WORDS[tuple(lost)])
            else:
                assert told == [True, True, k - (lost == TORN)]


def saved_by(worker, recipe):
    """Train two steps, and save: this rank's memory, and the state that all have saved."""
    trainer, memory = recipe(TINY, 0), InMemory()
    batch = random_batch(0, 6, TINY.context, TINY.vocab)
    for k in range(2):
        trainer.step(batch.shard(trainer.data_rank, trainer.data_size))
        memory.save(trainer, updates=k)
    found = memory.kept, memory.ranks, bits(trainer)
    trainer.close()
    return found


def restored_by(worker, recipe, given):
    """Restore on other ranks; rank r has the memory given[r], or none."""
    trainer, memory = recipe(TINY, 1), InMemory()
    if given[worker.rank]:
        memory.kept, memory.ranks = given[worker.rank]
    progress = memory.restore(trainer)
    state = bits(trainer)
    memory.save(trainer, **progress)  # on these ranks; and once more
    assert memory.restore(trainer) == progress
    assert equal(bits(trainer), state)
    trainer.step(random_batch(0, 6, 8, 16).shard(trainer.data_rank, trainer.data_size))
    trainer.close()
    return progress, state


ZERO_4, ZERO_3 = (Recipe(layout=Layout(dp=n), owner=Zero3) for n in (4, 3))
BOTH = Recipe(layout=Layout(dp=2, tp=2), owner=Zero1)


@pytest.mark.parametrize(
    ("saved", "restored", "survivors"),
    [
        (ZERO_4, ZERO_3, [0, 2, 3]),
        (ZERO_4, Recipe(layout=Layout(dp=2)), [1, 2]),
        (ZERO_3, Recipe(layout=Layout(dp=1)), [1]),  # a ring of three: two copies are not enough
        (Recipe(layout=Layout(dp=1)), ZERO_3, [None, 0, None]),
        (BOTH, Recipe(layout=Layout(dp=3)), [3, 1, None]),
        (Recipe(layout=Layout(dp=3)), BOTH, [None, 2, 1, None]),
    ],
    ids=["one lost", "one of each pair", "two of three", "two come in", "other axes", "and back"],
)
def test_survivors_restore_to_their_own_layout(saved, restored, survivors):
    before = launch(saved_by, saved.layout.world_size, device="cpu", recipe=saved)
    given = [None if old is None else before[old][:2] for old in survivors]
    options = {"device": "cpu", "recipe": restored, "given": given}
    if survivors == [1]:
        with pytest.raises(WorkerError, match=r"the shards of ranks \[2\] are on no rank"):
            launch(restored_by, 1, **options)
        return
    for progress, state in launch(restored_by, len(survivors), **options):
        assert progress == {"updates": 1}
        assert equal(state, before[0][2])


@pytest.mark.parametrize("ranks", range(2, 8))
def test_partners_are_pairs_and_an_odd_rank_is_in_a_ring_of_three(ranks):
    for rank in range(ranks):
        to, source = partners(rank, ranks)
        assert partners(to, ranks)[1] == partners(source, ranks)[0] == rank
        assert (to == source) == (ranks % 2 == 0 or rank < ranks - 3)
        assert to != rank
    with pytest.raises(ValueError, match="one rank alone has no partner"):
        partners(0, 1)

"""A flipped bit on one rank is found and named, wherever replicas are."""

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.resilience.replicas import VALUE, checksum, flip, odd_replicas
from helpers.runtime.launch import launch

TINY = GPTConfig(context=8, width=8, layers=2, heads=2, vocab=16)


NORM, QUERY = "norm.weight", "blocks.1.attention.query.weight"
CASES = [
    # layout, owner, (rank, name, slot, index, bit) changed, (name, slot, ranks) found
    ({"dp": 4}, None, [(2, NORM, VALUE, 3, 0)], [(NORM, VALUE, (2,))]),
    ({"dp": 4}, None, [(1, NORM, "exp_avg", 0, 31)], [(NORM, "exp_avg", (1,))]),
    # with two holders of each number, nobody knows which of them is right
    ({"dp": 2, "tp": 2}, None, [(3, QUERY, VALUE, 7, 20)], [(QUERY, VALUE, (1, 3))]),
    # a norm is whole on all four ranks
    ({"dp": 2, "tp": 2}, None, [(3, NORM, VALUE, 0, 5)], [(NORM, VALUE, (3,))]),
    # two ranks agree, the other two do not agree with anybody
    (
        {"dp": 4},
        None,
        [(0, NORM, VALUE, 0, 1), (3, NORM, VALUE, 0, 2)],
        [(NORM, VALUE, (0, 1, 2, 3))],
    ),
    # several tensors, in one comparison
    (
        {"dp": 4},
        None,
        [(0, NORM, VALUE, 0, 1), (2, QUERY, "exp_avg_sq", 5, 3)],
        [(QUERY, "exp_avg_sq", (2,)), (NORM, VALUE, (0,))],
    ),
    # a shard of ZeRO has no witness
    ({"dp": 4}, Zero1, [(2, NORM, VALUE, 0, 9)], []),
]


def corrupt(worker, cases) -> list:
    """For each case: train a step, change bits on some ranks, compare, as plain data."""
    found = []
    for layout, owner, changes, _ in cases:
        recipe = Recipe(layout=Layout(**layout), **({"owner": owner} if owner else {}))
        trainer = recipe(TINY, 0)
        batch = random_batch(0, 4, TINY.context, TINY.vocab)
        trainer.step(batch.shard(trainer.data_rank, trainer.data_size))
        before = odd_replicas(trainer)
        _, values, moments = trainer.stored()
        for rank, name, slot, index, bit in changes:
            if worker.rank == rank and values[name].numel() > index:
                flip(values[name] if slot == VALUE else moments[name][slot], index, bit)
        found.append((before, [(o.name, o.slot, o.ranks) for o in odd_replicas(trainer)]))
        trainer.close()
    return found


def test_a_flipped_bit_is_found():
    runs = launch(corrupt, workers=4, device="cpu", cases=CASES)
    for found in runs:  # every rank gets the same answer
        for (*_, expected), (before, after) in zip(CASES, found, strict=True):
            assert before == []
            assert after == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_a_flip_changes_one_bit_and_the_checksum(dtype):
    tensor = torch.arange(6).to(dtype).reshape(2, 3)
    size = 8 * tensor.element_size()
    for index, bit in ((0, 0), (4, size - 1), (5, 3)):
        changed = tensor.clone()
        flip(changed, index, bit)
        assert (changed.view(-1)[:index] == tensor.view(-1)[:index]).all()
        assert checksum(changed) != checksum(tensor)
        flip(changed, index, bit)
        assert torch.equal(changed, tensor)
        assert checksum(changed) == checksum(tensor)
    assert checksum(tensor.t().contiguous().t()) == checksum(tensor)  # not the order in memory
    for bit in (-1, size):
        with pytest.raises(ValueError, match=f"has the bits 0 to {size - 1}, not {bit}"):
            flip(tensor, 0, bit)


def test_a_number_has_a_checksum_too():
    assert checksum(3) == checksum(torch.tensor(3))
    assert checksum(3) != checksum(4)

"""The content of a message tells its parameters, in any format and any cut."""

import pytest
import torch

from helpers.training.traffic.fingerprints import Fingerprints, hashes


def some(*sizes):
    generator = torch.Generator().manual_seed(0)
    return {f"p{i}": torch.randn(size, generator=generator) for i, size in enumerate(sizes)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_shard_is_found_whatever_surrounds_it(dtype):
    tensors = some((8, 5), 17, (3, 4))
    found = Fingerprints(tensors)
    for name, tensor in tensors.items():
        shard = tensor.to(dtype).flatten()[3:11]
        row = torch.cat([torch.zeros(7, dtype=dtype), shard, torch.zeros(2, dtype=dtype)])
        run = 64 // (8 * row.itemsize)
        assert found.find(row) == {name: 8 - run + 1}
    both = torch.cat([tensors["p0"].flatten()[:6], tensors["p2"].flatten()[:6]]).to(dtype)
    assert found.find(both).keys() == {"p0", "p2"}


def test_what_several_parameters_contain_belongs_to_none_of_them():
    found = Fingerprints(some(10) | {"ones": torch.ones(4), "more ones": torch.ones(6)})
    assert found.find(torch.ones(5)) == {}
    assert found.knows(torch.ones(5))
    assert found.knows(torch.cat([torch.ones(4), torch.zeros(9)]))
    assert not found.knows(torch.cat([torch.ones(2), torch.arange(3.0, 9)]))
    alone = Fingerprints(some(10) | {"ones": torch.ones(4)})
    assert alone.find(torch.ones(5)) == {"ones": 4}


def test_zeros_say_nothing():
    found = Fingerprints(some(10) | {"bias": torch.zeros(8)})
    assert found.find(torch.zeros(8)) == {}
    assert not found.knows(torch.zeros(8))


def test_a_few_runs_by_chance_are_not_enough():
    tensors = some(10)
    noise = torch.randn(20, generator=torch.Generator().manual_seed(1))
    assert Fingerprints(tensors).find(torch.cat([tensors["p0"][:3], noise])) == {}
    for more, found in ((6, {"p0": 2}), (7, {})):  # 2 of 8 runs, and 2 of 9
        content = torch.cat([tensors["p0"][:3], noise[:more]])
        assert Fingerprints(tensors).find(content) == found


def test_other_numbers_are_not_found():
    found = Fingerprints(some((8, 5)))
    assert found.find(torch.randn(20)) == {}
    assert found.find(-found.tensors["p0"]) == {}
    assert found.find(torch.ones(1)) == {}
    assert found.find(torch.ones(0)) == {}
    assert Fingerprints({"short": torch.ones(1)}).find(torch.ones(5)) == {}


def test_the_order_of_the_numbers_counts():
    row = torch.tensor([1.0, 2.0, 3.0])
    assert len(hashes(row)) == 2
    assert not set(hashes(row).tolist()) & set(hashes(row.flip(0)).tolist())

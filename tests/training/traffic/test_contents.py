"""The content of a message tells its parameters; sizes tell which gradients it contains."""

import pytest
import torch

from helpers.training.traffic.contents import Fingerprints, Pending, hashes


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
    assert found.find(torch.randn(20, generator=torch.Generator().manual_seed(1))) == {}
    assert found.find(-found.tensors["p0"]) == {}
    assert found.find(torch.ones(1)) == {}
    assert found.find(torch.ones(0)) == {}
    assert Fingerprints({"short": torch.ones(1)}).find(torch.ones(5)) == {}


def test_the_order_of_the_numbers_counts():
    row = torch.tensor([1.0, 2.0, 3.0])
    assert len(hashes(row)) == 2
    assert not set(hashes(row).tolist()) & set(hashes(row.flip(0)).tolist())


UNITS = {
    "first": {"first.w": 10},
    "a": {"a.w": 6, "a.b": 2},
    "b": {"b.w": 6, "b.b": 2},
    "last": {"last.w": 7},
}
PADDING = {"first.w": 2, "a.w": 1, "a.b": 1, "b.w": 1, "b.b": 1, "last.w": 1}


def pending(*begun):
    found = Pending(UNITS, PADDING)
    for unit in begun:
        found.begin(unit)
    return found


def test_each_layer_by_itself():
    found = pending("last")
    assert found.take(7) == {"last": {"last.w": 7}}
    found.begin("b")
    assert found.take(8) == {"b": {"b.b": 2, "b.w": 6}}
    assert found.take(8) == {}


def test_of_two_equal_layers_the_older_goes_first():
    found = pending("b", "a")
    assert list(found.take(8)) == ["b"]
    assert list(found.take(8)) == ["a"]


def test_a_root_that_waits_for_the_end():
    found = pending("last", "b")
    assert list(found.take(8)) == ["b"]  # exact, although last and its padding are 8 too
    found.begin("a")
    assert list(found.take(8)) == ["a"]
    found.begin("first")
    assert list(found.take(17)) == ["last", "first"]
    assert found.waiting == {}


def test_padding_is_allowed_and_no_more():
    assert list(pending("last", "b").take(10)) == ["b"]
    assert pending("b").take(11) == pending("last", "b").take(12) == {}


def test_a_bucket_may_end_within_a_layer():
    found = pending("last", "b", "a")
    assert found.take(9) == {"last": {"last.w": 7}, "b": {"b.b": 2}}
    assert found.take(8) == {"a": {"a.b": 2, "a.w": 6}}
    assert found.take(6) == {"b": {"b.w": 6}}
    assert pending("b", "a").take(2) == {"b": {"b.b": 2}}  # the first parameter alone


def test_cut_parameters_may_have_sums_of_their_own():
    """The biases are cut. The others' sum leaves them out, and they follow."""
    found = Pending(UNITS, PADDING, cut={"a.b", "b.b"})
    for unit in ("last", "b", "a"):
        found.begin(unit)
    assert found.take(19) == {"last": {"last.w": 7}, "b": {"b.w": 6}, "a": {"a.w": 6}}
    assert found.take(4) == {"b": {"b.b": 2}, "a": {"a.b": 2}}


def test_a_second_micro_batch_adds_to_the_gradients_that_wait():
    found = pending("last", "b", "last", "b")
    assert list(found.take(15)) == ["last", "b"]
    assert found.waiting == {}


@pytest.mark.parametrize("size", [0, 3, 100])
def test_other_sizes_are_not_gradients(size):
    found = pending("last", "b")
    before = {unit: dict(own) for unit, own in found.waiting.items()}
    assert found.take(size) == {}
    assert found.waiting == before

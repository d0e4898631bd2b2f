"""Pictures in batches: the same global batches on any number of ranks."""

import pytest
import torch

from helpers.data.batch import Pictures
from helpers.data.order import Order
from helpers.data.pictures import PictureSource, random_pictures

IMAGES = torch.arange(10 * 2 * 3.0).reshape(10, 2, 3)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shards_are_the_global_batch_with_its_numbers(world):
    source = PictureSource(IMAGES, Order(10, batch=5, seed=1))
    whole = source.shard(3)
    assert torch.equal(whole.images, IMAGES[source.order.global_batch(3)])
    parts = [source.shard(3, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat([p.images for p in parts]), whole.images)
    assert torch.cat([p.numbers for p in parts]).tolist() == [0, 1, 2, 3, 4]
    assert {p.step for p in parts} == {3}


def test_an_order_for_another_number_of_pictures_is_refused():
    with pytest.raises(ValueError, match="10 pictures, but the order is for 11"):
        PictureSource(IMAGES, Order(11, batch=5))


def test_a_batch_of_pictures_is_cut_and_counted_by_pictures():
    batch = Pictures(images=IMAGES, step=4)
    assert batch.counted() == len(batch) == 10
    cut = batch.shard(1, 3)
    assert (len(cut), cut.counted(), cut.step) == (3, 3, 4)
    assert cut.numbers.tolist() == [4, 5, 6]
    assert torch.equal(cut.images, IMAGES[4:7])
    assert [m.numbers.tolist() for m in cut.micro(4)] == [[4], [5], [6], []]
    there = batch.to("meta")
    assert (there.images.is_meta, there.numbers.is_meta, there.step) == (True, True, 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"images": IMAGES[0]}, r"must be \(B, H, W\), not \(2, 3\)"),
        ({"images": IMAGES, "numbers": torch.arange(2)}, "10 pictures, but 2 numbers"),
    ],
)
def test_other_shapes_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Pictures(**given)


def test_random_pictures_are_grey_and_always_the_same():
    batch = random_pictures(3, 6, side=4)
    assert batch.images.shape == (6, 4, 4)
    assert 0 <= batch.images.min() < 0.2
    assert 0.8 < batch.images.max() <= 1
    assert torch.equal(batch.images, random_pictures(3, 6, side=4).images)
    assert not torch.equal(batch.images, random_pictures(4, 6, side=4).images)
    assert random_pictures(0, 2).images.shape == (2, 8, 8)

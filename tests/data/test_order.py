import itertools
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.data.order import Order, shuffled

orders = st.builds(
    Order,
    samples=st.integers(1, 60),
    batch=st.integers(1, 20),
    seed=st.integers(-5, 2**63),
    shuffle=st.booleans(),
)


@given(orders, st.integers(0, 50), st.integers(1, 9))
def test_shards_in_rank_order_are_the_global_batch(order, k, world):
    shards = [order.shard(k, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat(shards), order.global_batch(k))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@given(orders)
def test_every_epoch_holds_every_sample_once(order):
    n = order.samples
    batches = range(-(-3 * n // order.batch))  # three epochs
    row = list(itertools.chain(*(order.global_batch(k).tolist() for k in batches)))
    for start in range(0, len(row) - n + 1, n):
        assert sorted(row[start : start + n]) == list(range(n))


def test_a_run_resumed_on_other_ranks_sees_the_samples_it_would_have_seen():
    whole = [Order(samples=103, batch=10, seed=7).global_batch(k).tolist() for k in range(30)]
    seen = []
    for k in range(30):  # a new Order each time: only seed and k matter
        world = (1, 2, 4)[k // 10]
        order = Order(samples=103, batch=10, seed=7)
        seen.append([i for rank in range(world) for i in order.shard(k, rank, world).tolist()])
    assert seen == whole


def test_an_order_is_the_same_in_later_releases():
    """A run that is resumed after an update of this package goes on with the same samples."""
    assert Order(50, batch=8, seed=7).global_batch(5).tolist() == [5, 38, 21, 12, 22, 2, 33, 14]
    far = Order(1000, batch=5, seed=2**63 + 5).global_batch(250)
    assert far.tolist() == [228, 189, 408, 787, 521]
    assert Order(10**9, batch=3, seed=-3).shard(10**9, 1, 2).tolist() == [587003647]


def test_unshuffled_samples_stand_in_a_row():
    order = Order(samples=5, batch=3, shuffle=False)
    assert [order.global_batch(k).tolist() for k in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert [order.epoch(k) for k in range(4)] == [0, 0, 1, 1]
    assert Order(50, batch=8) == Order(50, batch=8, seed=0, shuffle=True)


def test_all_orders_of_four_come_up_equally_often():
    """All 24 orders are equally likely: chi-squared, 23 degrees of freedom, 1200 seeds, 2 epochs.

    The distribution's 0.999999 quantile is 70.5. The seeds are fixed, so the result is too.
    """
    counts = {}
    for seed in range(1200):
        for epoch in range(2):
            order = tuple(shuffled(np.arange(4), 4, seed, epoch).tolist())
            counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 70.5


def test_a_billion_samples_take_no_memory():
    order = Order(samples=10**9, batch=64, seed=3)
    tracemalloc.start()
    shard = order.shard(10**10, 1, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(shard) == 16
    assert len(set(order.global_batch(10**10).tolist())) == 64
    assert peak < 1_000_000  # bytes


def test_what_makes_no_order_is_refused():
    with pytest.raises(ValueError, match="at least 1, not 0 and 4"):
        Order(samples=0, batch=4)
    with pytest.raises(ValueError, match="at least 1, not 4 and 0"):
        Order(samples=4, batch=0)
    with pytest.raises(ValueError, match="there is no batch -1"):
        Order(samples=4, batch=4).global_batch(-1)
    with pytest.raises(ValueError, match="no part 2 of 2"):
        Order(samples=4, batch=4).shard(0, 2, 2)


@settings(max_examples=20)
@given(st.integers(0, 2**62))
def test_far_places_are_exact(k):
    order = Order(samples=1000, batch=1, shuffle=False)
    assert order.global_batch(k).tolist() == [k % 1000]

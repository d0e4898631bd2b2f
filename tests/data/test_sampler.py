import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from helpers.data.sampler import ShardSampler


@given(
    samples=st.integers(0, 60),
    world=st.integers(1, 12),
    shuffle=st.booleans(),
    seed=st.integers(0, 1000),
    drop_last=st.booleans(),
    epochs=st.lists(st.integers(0, 1000), max_size=3),
)
def test_every_index_is_torchs(samples, world, shuffle, seed, drop_last, epochs):
    for rank in range(world):
        how = {"num_replicas": world, "rank": rank, "shuffle": shuffle}
        how |= {"seed": seed, "drop_last": drop_last}
        ours, torchs = ShardSampler(samples, **how), DistributedSampler(range(samples), **how)
        assert (len(ours), ours.num_samples) == (len(torchs), torchs.num_samples)
        assert ours.total_size == torchs.total_size
        assert list(ours) == list(torchs)
        for epoch in epochs:
            ours.set_epoch(epoch)
            torchs.set_epoch(epoch)
            assert list(ours) == list(torchs)


def test_it_shuffles_and_pads_unless_you_choose():
    for rank in range(3):
        assert list(ShardSampler(10, 3, rank)) == list(DistributedSampler(range(10), 3, rank))
    assert len(ShardSampler(10, 3, 0)) == 4


def test_a_data_loader_takes_it_and_epochs_differ_only_when_set():
    dataset = TensorDataset(torch.arange(10))
    sampler = ShardSampler(dataset, num_replicas=2, rank=1, seed=3)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)

    def seen():
        return torch.cat([rows for (rows,) in loader]).tolist()

    first = seen()
    assert len(first) == 5
    assert seen() == first
    sampler.set_epoch(1)
    assert seen() != first


@pytest.mark.parametrize(("world", "rank"), [(2, 2), (2, -1), (0, 0)])
def test_a_rank_that_is_not_there_is_refused(world, rank):
    with pytest.raises(ValueError, match=f"no rank {rank} of {world}"):
        ShardSampler(5, world, rank)


def test_fewer_than_no_samples_are_refused():
    with pytest.raises(ValueError, match="must not be negative: -1"):
        ShardSampler(-1, 2, 0)

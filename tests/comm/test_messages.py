"""Chunks, rows and single exchanges."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from helpers.comm.messages import Peers, in_a_row, split, written_in_a_row
from helpers.runtime.launch import launch


@given(st.integers(0, 10**9), st.integers(1, 1000))
def test_chunks_add_up_and_are_nearly_equal(numel, parts):
    sizes = split(numel, parts)
    assert len(sizes) == parts
    assert sum(sizes) == numel
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_chunks():
    assert split(10, 4) == [3, 3, 2, 2]
    assert split(2, 4) == [1, 1, 0, 0]
    assert split(0, 2) == [0, 0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6),
        torch.arange(6).view(2, 3).t(),
        torch.arange(12)[::2],
        torch.arange(6)[2:5],
        torch.tensor(3),
        torch.empty(0, 4),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(1, dtype=torch.complex64).conj().imag,  # a negative view
        torch.nn.Parameter(torch.ones(2, 3)),
        torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ],
)
def test_a_row_holds_the_same_numbers_and_writes_them_back(tensor):
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        tensor = tensor.clone()
    assert torch.equal(in_a_row(tensor), tensor.flatten())
    assert in_a_row(tensor).is_contiguous()
    assert in_a_row(tensor).numpy().tolist() == tensor.detach().flatten().tolist()  # plain memory
    with written_in_a_row(tensor) as row:
        row.fill_(7)
    assert torch.equal(tensor, torch.full_like(tensor, 7))


def test_what_lies_in_a_row_is_not_copied():
    tensor = torch.arange(8)[2:6]
    assert in_a_row(tensor).data_ptr() == tensor.data_ptr()


def test_an_expanded_tensor_can_be_read_but_not_written():
    tensor = torch.ones(1).expand(3)
    assert in_a_row(tensor).tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="single memory location"), written_in_a_row(tensor):
        pass


def test_all_ranks_send_at_once():
    def around(worker, numel):
        peers = Peers()
        mine, theirs = torch.full((numel,), worker.rank), torch.empty(numel, dtype=torch.int64)
        peers.exchange(mine, peers.right, theirs, peers.left)
        return theirs.unique().tolist()

    for numel in (1, 3_000_000):  # the larger buffer does not fit into the sockets' buffers
        assert list(launch(around, workers=3, numel=numel)) == [[2], [0], [1]]
    assert list(launch(around, workers=2, timeout=20, numel=0)) == [[], []]


def test_ranks_count_within_the_group():
    def in_a_pair(worker):
        group = dist.new_group([1, 2])
        if worker.rank == 0:
            with pytest.raises(ValueError, match="rank 0 is not in this group"):
                Peers(group)
            return None
        peers, theirs = Peers(group), torch.empty(1)
        peers.exchange(torch.full((1,), 10.0 + worker.rank), peers.right, theirs, peers.left)
        return peers.rank, peers.size, theirs.item()

    assert list(launch(in_a_pair, workers=3, device="cpu")) == [None, (0, 2, 12.0), (1, 2, 11.0)]

"""A sequence's table follows its length; forks share blocks; a freed sequence is refused."""

import pytest
import torch

from helpers.models.caches.kept import Kept
from helpers.models.caches.paged import Paged

ATTENTION = {0: Kept(per_token=((1, 2),))}
RECURRENT = {0: Kept(per_sequence=((3,),)), 1: Kept(per_token=((1, 2),))}


def grown(paged, length):
    sequence = paged.sequence()
    batch = paged.batch([sequence])
    batch.begin(length)
    batch.end()
    return sequence


def references(paged):
    return [paged.allocator.references(block) for block in range(paged.allocator.blocks)]


def test_a_fork_shares_every_block_with_a_token():
    paged = Paged(ATTENTION, 6, 4)
    sequence = grown(paged, 6)
    twin = sequence.fork()
    assert twin.table == sequence.table == [0, 1]
    assert twin.table is not sequence.table
    assert twin.length == 6
    assert references(paged) == [2, 2, 0, 0, 0, 0]
    assert repr(twin) == "PagedSequence(6 tokens, blocks [0, 1])"
    sequence.free()
    assert references(paged) == [1, 1, 0, 0, 0, 0]
    twin.free()
    assert references(paged) == [0] * 6
    assert paged.sequences == []


def test_a_fork_leaves_out_blocks_of_a_step_that_failed():
    paged = Paged(ATTENTION, 6, 4)
    sequence = grown(paged, 4)
    paged.batch([sequence]).begin(9)  # never ends
    assert len(sequence.table) == 4
    assert sequence.fork().table == [0]
    sequence.rewind(4)
    assert sequence.table == [0]


@pytest.mark.parametrize(("length", "blocks"), [(9, 3), (8, 2), (5, 2), (1, 1), (0, 0)])
def test_rewinding_releases_blocks_without_tokens(length, blocks):
    paged = Paged(ATTENTION, 6, 4)
    sequence = grown(paged, 9)
    sequence.rewind(length)
    assert sequence.length == length
    assert sequence.table == [0, 1, 2][:blocks]
    assert paged.free_blocks == 6 - blocks


def test_the_last_block_is_used_again_first():
    paged = Paged(ATTENTION, 3, 1)
    grown(paged, 3).free()
    assert grown(paged, 3).table == [2, 1, 0]


def test_what_a_sequence_refuses():
    paged = Paged(ATTENTION, 6, 4)
    sequence = grown(paged, 6)
    for wrong in (7, -1):
        with pytest.raises(ValueError, match=f"cannot rewind a sequence of 6 tokens to {wrong}"):
            sequence.rewind(wrong)
    sequence.free()
    assert repr(sequence) == "PagedSequence(0 tokens, blocks [], freed)"
    for call in (sequence.free, sequence.fork, lambda: sequence.rewind(0)):
        with pytest.raises(ValueError, match="freed already"):
            call()
    assert paged.free_blocks == 6


def test_states_are_forked_and_not_rewound():
    paged = Paged(RECURRENT, 6, 4)
    sequence = paged.sequence()
    batch = paged.batch([sequence])
    for value in (1.0, 2.0):
        batch.begin(1)
        batch.blocks[0].write(torch.full((1, 3), value))
        batch.end()
        if value == 1:
            twin = sequence.fork()
    both = paged.batch([twin, sequence])
    both.begin(0)
    assert both.blocks[0].read()[0][:, 0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="cannot be rewound; fork the sequence before"):
        sequence.rewind(1)
    sequence.rewind(2)
    sequence.free()
    assert paged.sequence().line == sequence.line

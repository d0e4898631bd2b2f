"""Blocks are reserved one at a time, shared on purpose only, copied before a write, never lost."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from helpers.models.caches.allocator import OutOfBlocks
from helpers.models.caches.cache import Kept, Usage
from helpers.models.caches.paged import Paged
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.caches.preallocated import Growing, Preallocated

ATTENTION = {0: Kept(per_token=((1, 1),))}


def append(sequences, *texts):
    """Write each sequence's new tokens, as numbers, into the cache. Return all that it reads."""
    paged, counts = sequences[0].paged, [len(text) for text in texts]
    batch, tokens = PagedBatch(paged, sequences), max(counts)
    batch.begin(tokens, counts)
    new = torch.tensor([list(text) + [-7] * (tokens - len(text)) for text in texts])
    seen = []

    def core(q, rows, seen_):
        seen.extend(row.flatten().int().tolist() for row in rows)

    new = new.float()[:, None, :, None]
    batch.blocks[0].attend(core, new, new)
    batch.end()
    return [row[: sequence.length] for row, sequence in zip(seen, sequences, strict=True)]


def test_a_block_is_reserved_for_every_p_tokens():
    paged = Paged(ATTENTION, 8, 4)
    sequence, found = paged.sequence(), []
    for n in range(10):
        found.append((paged.count([sequence], [1]), len(sequence.table)))
        append([sequence], [n])
    assert found == [(1, 0)] + [(0, 1)] * 3 + [(1, 1)] + [(0, 2)] * 3 + [(1, 2), (0, 3)]
    assert [paged.count([sequence], [n]) for n in (0, 2, 3, 6, 7)] == [0, 0, 1, 1, 2]
    assert paged.free_blocks == 5
    assert paged.usage() == Usage(slots=32, reserved=12, used=10, tokens=10)
    assert (paged.usage().wasted, paged.usage().saved) == (2, 0)


def test_a_shared_block_is_copied_before_it_is_written():
    paged = Paged(ATTENTION, 8, 4)
    sequence = paged.sequence()
    append([sequence], range(6))
    twin = sequence.fork()
    assert paged.usage() == Usage(slots=32, reserved=8, used=6, tokens=12)
    assert paged.count([twin], [1]) == 1
    assert paged.count([twin], [3]) == 2
    assert append([twin], [60]) == [[0, 1, 2, 3, 4, 5, 60]]
    assert (sequence.table, twin.table) == ([0, 1], [0, 2])
    assert paged.count([sequence], [1]) == 0  # its block is its own now
    assert append([sequence, twin], [70], [61]) == [
        [0, 1, 2, 3, 4, 5, 70],
        [0, 1, 2, 3, 4, 5, 60, 61],
    ]
    assert paged.usage() == Usage(slots=32, reserved=12, used=4 + 3 + 4, tokens=15)
    assert paged.usage().saved == 4


def test_the_last_of_all_owners_needs_no_copy():
    paged = Paged(ATTENTION, 3, 4)
    first = paged.sequence()
    append([first], range(3))
    family = [first, first.fork(), first.fork()]
    assert [paged.count([one], [1]) for one in family] == [1, 1, 1]
    assert paged.count(family, [1, 1, 1]) == 2
    assert append(family, [10], [20], [30]) == [[0, 1, 2, n] for n in (10, 20, 30)]
    assert sorted(one.table for one in family) == [[0], [1], [2]]


def test_out_of_blocks_changes_nothing_and_the_others_go_on():
    paged = Paged(ATTENTION, 4, 2)
    a, b = paged.sequence(), paged.sequence()
    append([a, b], range(3), range(10, 12))
    twin = a.fork()
    before = [list(one.table) for one in (a, b, twin)], paged.free_blocks
    with pytest.raises(OutOfBlocks, match="2 more blocks are needed, but 1 of 4 are free") as error:
        append([twin, b], [3], [12])
    assert (error.value.needed, error.value.free) == (2, 1)
    assert ([list(one.table) for one in (a, b, twin)], paged.free_blocks) == before
    assert append([b], [12]) == [[10, 11, 12]]
    with pytest.raises(OutOfBlocks):
        append([a], [3])
    b.free()
    assert append([a], [3]) == [[0, 1, 2, 3]]
    assert append([twin], [4]) == [[0, 1, 2, 4]]


def test_a_known_prefix_is_shared_in_whole_blocks():
    paged = Paged(ATTENTION, 8, 2, share_prefixes=True)
    a = paged.sequence()
    assert append([a], range(5))
    assert paged.sequence([0, 1, 2, 3]).table == []  # not registered yet
    paged.register(a, [0, 1, 2, 3, 4, 9])  # 9 is not in the cache yet
    b = paged.sequence([0, 1, 2, 3, 4])
    assert (b.table, b.length) == ([0, 1], 4)
    assert paged.sequence([0, 1, 2, 3]).table == [0]  # one token at least is left
    assert paged.sequence([0, 1, 7, 7]).table == [0]
    assert paged.sequence([0, 1, 2, 3, 4, 9, 9]).table == [0, 1]
    assert paged.sequence([5, 0, 1]).table == paged.sequence([0]).table == []
    assert append([b], [50]) == [[0, 1, 2, 3, 50]]
    assert append([a], [60]) == [[0, 1, 2, 3, 4, 60]]


def test_a_known_prefix_outlives_its_sequence_until_its_block_is_used():
    paged = Paged(ATTENTION, 4, 2, share_prefixes=True)
    a = paged.sequence()
    append([a], range(4))
    paged.register(a, range(4))
    a.free()
    assert paged.free_blocks == 4
    b = paged.sequence([0, 1, 2, 3, 4])
    assert (b.table, b.length, paged.free_blocks) == ([0, 1], 4, 2)
    assert append([b], [40]) == [[0, 1, 2, 3, 40]]
    b.free()
    c = paged.sequence()
    append([c], range(20, 26))  # takes all but the block that was released last
    found = paged.sequence([0, 1, 2, 3, 4])
    assert found.table == [0]
    found.free()
    append([c], [26, 27])
    assert c.table[-1] == 0
    assert paged.sequence([0, 1, 2, 3, 4]).table == []


def test_a_known_block_that_its_owner_writes_again_is_forgotten():
    paged = Paged(ATTENTION, 4, 2, share_prefixes=True)
    a = paged.sequence()
    append([a], range(4))
    paged.register(a, range(4))
    a.rewind(3)
    assert paged.sequence([0, 1, 2, 3, 9]).table == [0, 1]  # the content is as before
    for sequence in paged.sequences[1:]:
        sequence.free()
    append([a], [77])
    assert a.table == [0, 1]
    assert paged.sequence([0, 1, 2, 3, 9]).table == [0]


def test_a_nan_does_not_stay_in_a_block():
    paged = Paged(ATTENTION, 1, 4)
    a = paged.sequence()
    append([a], [0, 0, 0])
    paged.store.memory.fill_(float("nan"))
    a.free()
    b = paged.sequence()
    append([b], [1])
    assert paged.store.memory.isfinite().all()


def test_what_a_cache_refuses():
    recurrent = {0: Kept(per_sequence=((3,),))}
    with pytest.raises(ValueError, match="prefixes cannot be shared"):
        Paged(recurrent, 4, share_prefixes=True)
    paged = Paged(ATTENTION, 4)
    with pytest.raises(ValueError, match="make it with share_prefixes=True"):
        paged.register(paged.sequence(), [])
    freed = paged.sequence()
    freed.free()
    with pytest.raises(ValueError, match="freed already"):
        Paged.register(paged, freed, [])


def test_a_model_of_states_alone_needs_no_blocks():
    paged = Paged({0: Kept(per_sequence=((3,),))}, 0)
    sequence = paged.sequence()
    assert paged.count([sequence], [1000]) == 0
    batch = PagedBatch(paged, [sequence])
    batch.begin(1000)
    batch.end()
    assert (sequence.length, sequence.table) == (1000, [])
    assert paged.bytes == 3 * 4
    assert paged.usage() == Usage(slots=0, reserved=0, used=0, tokens=1000)


def test_it_draws_itself():
    paged = Paged(ATTENTION, 4, 2, share_prefixes=True)
    a, b = paged.sequence(), paged.sequence()
    append([a, b], range(3), [8, 9])
    paged.register(b, [8, 9])
    b.free()
    a.fork()
    assert repr(paged.plot(["first"], title="Blocks")) == (
        "Blocks. 4 blocks of 2 slots, 2 of them free. first, 3 tokens: blocks 0, 1. "
        "sequence 1, 3 tokens: blocks 0, 1. Shared: blocks 0, 1. 1 reserved slots are empty."
    )
    lines = [patch.get_linestyle() for patch in paged.plot().axes[0].patches]
    assert lines.count(":") == 1  # around the block that is free and known
    assert paged._repr_png_()[1]["alt"] == repr(paged.plot())


RECURRENT = {0: Kept(per_sequence=((3,),)), 1: Kept(per_token=((1, 2),))}


def grown(paged, length):
    sequence = paged.sequence()
    batch = PagedBatch(paged, [sequence])
    batch.begin(length)
    batch.end()
    return sequence


def test_a_fork_leaves_out_blocks_of_a_step_that_failed():
    paged = Paged(ATTENTION, 6, 4)
    sequence = grown(paged, 4)
    PagedBatch(paged, [sequence]).begin(9)  # never ends
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
    assert repr(sequence) == "PagedSequence(6 tokens, blocks [0, 1])"
    sequence.free()
    assert repr(sequence) == "PagedSequence(0 tokens, blocks [], freed)"
    for call in (sequence.free, sequence.fork, lambda: sequence.rewind(0)):
        with pytest.raises(ValueError, match="freed already"):
            call()
    assert paged.free_blocks == 6


def test_states_are_forked_and_not_rewound():
    paged = Paged(RECURRENT, 6, 4)
    sequence = paged.sequence()
    batch = PagedBatch(paged, [sequence])
    for value in (1.0, 2.0):
        batch.begin(1)
        batch.blocks[0].write(torch.full((1, 3), value))
        batch.end()
        if value == 1:
            twin = sequence.fork()
    both = PagedBatch(paged, [twin, sequence])
    both.begin(0)
    assert both.blocks[0].read()[0][:, 0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="cannot be rewound; fork the sequence before"):
        sequence.rewind(1)
    sequence.rewind(2)
    sequence.free()
    assert paged.sequence().line == sequence.line


LENGTHS = [3, 17, 64]


def filled(cache):
    cache.begin(max(LENGTHS), LENGTHS)
    cache.end()
    return cache


def test_paging_wastes_less_than_a_block_for_each_sequence():
    slots = filled(Preallocated(ATTENTION, 3, 64)).usage()
    assert slots == Usage(slots=192, reserved=192, used=84, tokens=84)
    assert filled(Growing(ATTENTION, 3)).usage() == slots
    paged = Paged(ATTENTION, 12, 16)
    filled(PagedBatch(paged, [paged.sequence() for _ in LENGTHS]))
    usage = paged.usage()
    assert usage == Usage(slots=192, reserved=(1 + 2 + 4) * 16, used=84, tokens=84)
    assert usage.wasted == 13 + 15 + 0
    assert slots.wasted == 61 + 47 + 0


class Texts(RuleBasedStateMachine):
    """Sequences as plain lists of tokens, beside the cache. Texts of few tokens collide often."""

    BLOCKS, SIZE = 6, 2

    def __init__(self):
        super().__init__()
        self.paged = Paged(ATTENTION, self.BLOCKS, self.SIZE, share_prefixes=True)
        self.texts = {}  # sequence -> its tokens

    def pick(self, data):
        return data.draw(st.sampled_from(list(self.texts)))

    @rule(tokens=st.lists(st.integers(0, 1), max_size=6))
    def start(self, tokens):
        if len(self.texts) < 5:
            sequence = self.paged.sequence(tokens)
            assert sequence.length <= max(len(tokens) - 1, 0)
            self.texts[sequence] = tokens[: sequence.length]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def step(self, data):
        some = data.draw(st.lists(st.sampled_from(list(self.texts)), min_size=1, unique=True))
        new = [data.draw(st.lists(st.integers(0, 1), max_size=3)) for _ in some]
        needed = self.paged.count(some, [len(tokens) for tokens in new])
        free, tables = self.paged.free_blocks, [list(one.table) for one in some]
        if needed > free:
            with pytest.raises(OutOfBlocks):
                append(some, *new)
            assert [one.table for one in some] == tables
            assert self.paged.free_blocks == free
            return
        for one, tokens in zip(some, new, strict=True):
            self.texts[one] = self.texts[one] + tokens
        assert append(some, *new) == [self.texts[one] for one in some]
        assert self.paged.free_blocks == free - needed

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fail_halfway(self, data):
        one = self.pick(data)
        if self.paged.count([one], [3]) <= self.paged.free_blocks:
            PagedBatch(self.paged, [one]).begin(3)

    @precondition(lambda self: 0 < len(self.texts) < 5)
    @rule(data=st.data())
    def fork(self, data):
        one = self.pick(data)
        self.texts[one.fork()] = self.texts[one]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def rewind(self, data):
        one = self.pick(data)
        length = data.draw(st.integers(0, one.length))
        one.rewind(length)
        self.texts[one] = self.texts[one][:length]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def register(self, data):
        one = self.pick(data)
        self.paged.register(one, self.texts[one])

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data):
        one = self.pick(data)
        one.free()
        del self.texts[one]
        with pytest.raises(ValueError, match="freed already"):
            one.free()

    @invariant()
    def no_block_is_leaked(self):
        tables = [block for one in self.texts for block in one.table]
        for block in range(self.BLOCKS):
            assert self.paged.allocator.references(block) == tables.count(block)
        assert self.paged.free_blocks == self.BLOCKS - len(set(tables))
        assert self.paged.sequences == list(self.texts)

    @invariant()
    def every_slot_has_its_token(self):
        rows = self.paged.store.rows[0][0].flatten().tolist()
        for one, text in self.texts.items():
            found = [
                rows[one.table[n // self.SIZE] * self.SIZE + n % self.SIZE]
                for n in range(one.length)
            ]
            assert found == text


Texts.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_no_text_is_lost_or_mixed_up = Texts.TestCase

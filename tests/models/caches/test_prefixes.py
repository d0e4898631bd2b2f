"""A block is found by the whole text up to its end, and by nothing else."""

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.caches.prefixes import Prefixes


def test_the_longest_known_prefix_in_whole_blocks():
    known = Prefixes(2)
    known.add([1, 2, 3, 4, 5], [7, 8])
    assert known.find([1, 2, 3, 4, 5, 6]) == [7, 8]
    assert known.find([1, 2, 3, 4]) == [7, 8]
    assert known.find([1, 2, 3]) == [7]
    assert known.find([1, 2, 9, 4]) == [7]
    assert known.find([1]) == known.find([]) == known.find([3, 4]) == known.find([9, 2, 3, 4]) == []
    assert len(known) == 2
    assert 7 in known
    assert 9 not in known


def test_the_first_block_of_a_text_stays():
    known = Prefixes(2)
    known.add([1, 2], [0])
    known.add([1, 2, 3, 4], [5, 6])
    assert known.find([1, 2, 3, 4]) == [0, 6]
    assert 5 not in known


def test_a_forgotten_block_takes_its_text_along():
    known = Prefixes(1)
    known.add([1, 2, 3], [0, 1, 2])
    known.forget(1)
    known.forget(9)  # not known
    assert known.find([1, 2, 3]) == [0]
    known.add([1, 4], [0, 1])  # block 1 has another content now; block 2 does not follow it
    assert known.find([1, 4, 3]) == [0, 1]
    assert known.find([1, 2, 3]) == [0]


def test_a_parent_s_number_is_used_again_for_another_text():
    known = Prefixes(1)
    known.add([1, 2], [0, 1])
    known.forget(0)
    known.add([5], [0])
    assert known.find([5, 2]) == [0]
    known.add([5, 2], [0, 1])  # now block 1 belongs there: one text a block
    assert known.find([5, 2]) == [0, 1]
    assert known.find([1, 2]) == []
    assert len(known) == 2


texts = st.lists(st.integers(0, 1), max_size=6)


@settings(max_examples=60, deadline=None)
@given(added=st.lists(st.tuples(texts, st.permutations(range(6))), max_size=6), asked=texts)
def test_a_block_that_is_found_has_this_text(added, asked):
    known, content = Prefixes(2), {}
    for tokens, blocks in added:
        known.add(tokens, blocks)
        for i in range(len(tokens) // 2):
            if blocks[i] in known:  # the last text that it was added for, if it was taken
                content.setdefault(blocks[i], set()).add(tuple(tokens[: 2 * i + 2]))
    for i, block in enumerate(known.find(asked)):
        assert tuple(asked[: 2 * i + 2]) in content[block]
    assert len(set(known.find(asked))) == len(known.find(asked))

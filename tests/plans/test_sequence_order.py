"""Which tokens a rank has, and the work of a causal ring: counted, by formula, and published."""

from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.models.blockwise import blocks
from helpers.plans.sequence_order import (
    contiguous,
    length,
    ring_efficiency,
    ring_scores,
    scores,
    spans,
    striped,
    zigzag,
)

ORDERS = [contiguous, zigzag, striped]
DOCUMENTS = st.lists(st.integers(1, 15), max_size=5)
RANKS = st.integers(1, 6)


def places(part):
    return [place for piece in part for place in piece]


def work(part, documents=()):
    """The scores of a part's tokens: at place p of its document, a token sees p + 1 keys."""
    starts = [0, *accumulate(documents)]
    total = 0
    for document, places in spans(part, documents):
        ends = places[0] + places[-1] - 2 * starts[document] + 2  # the first token's and the last's
        total += len(places) * ends // 2
    return total


def test_orders_by_hand():
    assert contiguous(7, 3) == [(range(3),), (range(3, 5),), (range(5, 7),)]
    assert [places(part) for part in zigzag(8, 2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert [places(part) for part in striped(7, 3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [places(part) for part in zigzag([4, 4], 2)] == [[0, 3, 4, 7], [1, 2, 5, 6]]
    assert [places(part) for part in zigzag(7, 2)] == [[0, 1, 5, 6], [2, 3, 4]]
    assert [places(part) for part in zigzag([1, 2, 3], 2)] == [[0, 1, 3], [2, 4, 5]]
    for order in (contiguous, striped):
        assert order([5, 2], 3) == order(7, 3)
    assert spans((range(5), range(6, 7)), [2, 4]) == [(0, range(2)), (1, range(2, 5)),
                                                       (2, range(6, 7))]  # fmt: skip
    assert spans((range(1, 9, 3),)) == [(0, range(1, 9, 3))]
    with pytest.raises(ValueError, match="cut into 0 pieces"):
        zigzag(4, 0)
    with pytest.raises(ValueError, match="cut into 0 pieces"):
        contiguous(4, 0)
    with pytest.raises(ValueError, match=r"4, 2\) and range\(0, 4\) have different steps"):
        scores((range(0, 4, 2),), (range(4),))


@given(documents=DOCUMENTS, ranks=RANKS, order=st.sampled_from(ORDERS))
def test_each_token_has_one_rank_and_parts_go_up(documents, ranks, order):
    """With any documents of so many tokens, the ranks have the same numbers of tokens."""
    parts, tokens = order(documents, ranks), sum(documents)
    assert sorted(place for part in parts for place in places(part)) == list(range(tokens))
    assert all(places(part) == sorted(places(part)) for part in parts)
    assert [length(part) for part in parts] == [
        tokens // ranks + (rank < tokens % ranks) for rank in range(ranks)
    ]


@given(documents=DOCUMENTS, ranks=RANKS, order=st.sampled_from(ORDERS), size=st.integers(1, 9))
def test_the_work_is_that_of_the_blocks(documents, ranks, order, size):
    """The formula, all pairs of places, and the scores that the blocks of each step leave."""
    parts = order(documents, ranks)
    of = [number for number, count in enumerate(documents) for _ in range(count)]
    for rank, found in enumerate(ring_scores(parts, documents)):
        assert sum(found) == work(parts[rank], documents)
        for step, count in enumerate(found):
            keys = parts[rank - step]
            pairs = [
                (q, k)
                for q in places(parts[rank]) for k in places(keys) if k <= q and of[k] == of[q]
            ]  # fmt: skip
            assert count == len(pairs)
            seen = torch.zeros(length(parts[rank]), length(keys), dtype=torch.int64)
            q, k = (torch.empty(1, n, 0) for n in seen.shape)
            cut = spans(parts[rank], documents), spans(keys, documents)
            for rows, columns, mask in blocks(q, k, None, size, cut):
                assert (seen[rows, columns] == 0).all()
                seen[rows, columns] = 1 if mask is None else mask.long()
                assert seen[rows, columns].any()
            assert seen.sum() == count


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_efficiency_of_a_ring(ranks):
    t = 96
    one = contiguous(t * ranks, ranks)
    for rank, found in enumerate(ring_scores(one)):
        assert sum(found) == rank * t * t + t * (t + 1) // 2
    whole = t * ranks * (t * ranks + 1) // 2
    assert ring_efficiency(one) == pytest.approx(ranks / (2 * ranks - 1), abs=1 / t)
    even = ring_scores(zigzag(t * ranks, ranks))
    assert {sum(found) for found in even} == {whole // ranks}
    assert ring_efficiency(zigzag(t * ranks, ranks)) == 1
    for rank, found in enumerate(ring_scores(striped(t * ranks, ranks))):
        late = [t * (t + 1) // 2] * (rank + 1) + [t * (t - 1) // 2] * (ranks - rank - 1)
        assert found == late
    assert ring_efficiency(striped(t * ranks, ranks)) == pytest.approx(1, abs=1 / t)


@given(documents=DOCUMENTS, ranks=RANKS)
def test_zigzag_balances_any_documents(documents, ranks):
    """Within two scores for each token, whatever a token's place is; and by the closed form."""
    found = [work(part, documents) for part in zigzag(documents, ranks)]
    assert max(found) - min(found) < 2 * sum(documents) + (not documents)
    even = [2 * ranks * count for count in documents]
    share = sum(count * (count + 1) // 2 for count in even) // ranks
    assert {work(part, even) for part in zigzag(even, ranks)} == {share}
    assert ring_efficiency(zigzag(even, ranks), even) == 1


def test_contiguous_parts_of_documents():
    """A rank's part of the last tokens of one document, beside a rank with m of its own."""
    t, ranks, m = 96, 4, 6
    documents = [(ranks - 1) * t, *[t // m] * m]
    found = [work(part, documents) for part in contiguous(documents, ranks)]
    assert found[:3] == [rank * t * t + t * (t + 1) // 2 for rank in range(3)]
    assert found[3] == m * (t // m) * (t // m + 1) // 2


def test_each_step_takes_as_long_as_its_slowest_rank():
    """Both ranks have 3 scores: one has 1 and 2 in the two steps, the other 3 and 0."""
    parts = [(range(2, 3),), (range(2),)]
    assert ring_scores(parts) == [[1, 2], [3, 0]]
    assert ring_efficiency(parts) == 3 / (3 + 2)
    assert ring_efficiency(contiguous(0, 3)) == 1


# github.com/zhuzilin/ring-flash-attention, README at 6f1c6f7, "batch api": 8 ranks, 8k tokens each;
# ring_attn over flash_attn, of the forward and of both passes, on 8 H800 and on 8 A100.
PUBLISHED = [0.521, 0.539, 0.514, 0.525]


def test_the_published_efficiencies_of_the_naive_ring():
    derived = ring_efficiency(contiguous(8 * 8192, 8))
    assert derived == pytest.approx(8 / 15, abs=1e-4)
    assert all(derived - 0.02 < one < derived + 0.01 for one in PUBLISHED)

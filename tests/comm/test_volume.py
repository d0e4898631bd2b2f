"""The formulas of bytes and messages, beside what any algorithm must move."""

import pytest

from helpers.comm.volume import CALLS, children, path, sent


@pytest.mark.parametrize("ranks", range(1, 18))
def test_a_tree_reaches_each_rank_once(ranks):
    assert sum(children(place, ranks) for place in range(ranks)) == ranks - 1
    assert children(0, ranks) == (ranks - 1).bit_length()  # the root sends in every step


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("root", [0, 2])
def test_what_all_ranks_send_together(backend, root):
    """Whatever the algorithm, so much must be moved; gloo's reduce_scatter moves twice that."""
    size, n = 1200, 5

    def total(call):
        return sum(sent(call, size, n, rank=r, root=root, backend=backend) for r in range(n))

    assert total("broadcast") == total("all_gather") == size * (n - 1)
    assert total("reduce") == size * (n - 1) * (1 + (backend == "gloo") / n)
    for call in ("broadcast", "reduce", "gather", "scatter"):  # the root is any rank
        turned = [
            sent(call, size, n, rank=(r + root) % n, root=root, backend=backend) for r in range(n)
        ]
        assert turned == [sent(call, size, n, rank=r, backend=backend) for r in range(n)]
    assert total("all_reduce") == 2 * size * (n - 1)
    assert total("reduce_scatter") == (2 if backend == "gloo" else 1) * size * (n - 1)
    assert total("gather") == total("scatter") == size * (n - 1) / n
    assert total("all_to_all") == size * (n - 1)
    assert total("barrier") == total("recv") == 0


def test_which_rank_sends_how_much():
    """The root is rank 1 of 4; in a chain the rank before the root is the last."""
    by_hand = {
        ("broadcast", "nccl"): [0, 1200, 1200, 1200],
        ("broadcast", "gloo"): [0, 2400, 1200, 0],  # 1 to 2, then 1 to 3 and 2 to 0
        ("reduce", "nccl"): [1200, 0, 1200, 1200],
        ("reduce", "gloo"): [1200, 900, 1200, 1200],
        ("gather", "gloo"): [300, 0, 300, 300],
        ("scatter", "gloo"): [0, 900, 0, 0],
    }
    for (call, backend), expected in by_hand.items():
        found = [sent(call, 1200, 4, rank=rank, root=1, backend=backend) for rank in range(4)]
        assert found == expected, call
    assert sent("send", 1200, 4, rank=3) == 1200
    for call in by_hand:  # rank 0, which is the root, unless you choose
        assert sent(call[0], 1200, 4) == sent(call[0], 1200, 4, rank=0, root=0, backend="gloo")
    assert sent("broadcast", 1200, 4) == 2400
    assert sent("reduce_scatter", 1200, 4) == 1800


def test_one_rank_sends_nothing():
    assert [call for call in CALLS if call != "send" and sent(call, 1000, 1)] == []


@pytest.mark.parametrize(
    ("call", "messages", "size"),
    [
        ("all_reduce", 6, 1500),
        ("all_gather", 3, 750),
        ("reduce_scatter", 6, 1500),
        ("broadcast", 2, 2000),
        ("all_to_all", 3, 750),
        ("reduce", 6, 1500),
        ("gather", 3, 750),
        ("scatter", 3, 750),
        ("send", 1, 1000),
        ("recv", 1, 1000),
        ("barrier", 2, 0),
    ],
)
def test_the_way_through_an_algorithm(call, messages, size):
    assert path(call, 1000, 4) == (messages, size)


def test_a_ring_needs_half_of_gloos_reduce_scatter():
    assert path("reduce_scatter", 1000, 4, backend="nccl") == (3, 750)
    assert path("all_reduce", 1000, 4, backend="nccl") == (6, 1500)
    assert path("reduce", 1000, 4, backend="nccl") == (3, 1000)  # a chain


@pytest.mark.parametrize(("ranks", "steps"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (9, 4)])
def test_a_tree_is_as_deep_as_it_must_be(ranks, steps):
    """Each step at most doubles the ranks that have the data."""
    assert path("broadcast", 1000, ranks) == (steps, 1000 * steps)
    assert path("barrier", 1000, ranks) == (steps, 0)


@pytest.mark.parametrize("formula", [sent, path])
def test_a_call_that_there_is_not(formula):
    with pytest.raises(ValueError, match="all_reduce"):
        formula("allreduce", 1000, 4)

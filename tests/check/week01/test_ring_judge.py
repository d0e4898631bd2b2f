"""The judge of the ring: what it says of sums and of messages, without ranks."""

import pytest
import torch

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.traffic import Call
from helpers.check.week01.ring import (
    contribution,
    counts,
    hint_ring_all_reduce,
    in_words,
    judge_ring_all_reduce,
    judge_ring_traffic,
)
from helpers.runtime.runs import Runs
from notebooks.solutions import week01
from tests.check.alone import found_alone


@pytest.mark.usefixtures("shared_ranks")
def test_a_mistake_of_the_last_rank_in_one_case_alone_is_found():
    def one_more(worker, tensor):
        week01.ring_all_reduce(worker, tensor)
        if worker.rank == worker.world_size - 1:
            tensor[-1] += 1  # in an empty tensor an error

    found = found_alone(check.ring_all_reduce, week01.ring_all_reduce, one_more)
    assert [finding.splitlines()[1] for finding in found if "numbers;" in finding] == [
        "Rank 3, position 7: 8080809, the sum is 8080808",
        "Rank 3, position 9: 10101011, the sum is 10101010",
        "Rank 1, position 4: 506, the sum is 505",
        "Rank 3, position 2: 3030304, the sum is 3030303",
        "Rank 0, position 2: 4, the sum is 3",
    ]
    assert found[4].startswith("with 3 ranks: rank 2 raised IndexError")
    assert found[0].endswith("\n  rank 0: 0 wrong\n  rank 1: 0 wrong\n  rank 2: 0 wrong\n"
                             "  rank 3: 1 wrong")  # fmt: skip


def test_each_pair_of_digits_is_one_rank_s():
    assert contribution(0, 3) == [1, 2, 3]
    assert contribution(2, 2) == [10_000, 20_000]
    assert counts(2 + 400 + 0 * 10_000, 1, 3) == [1, 2, 0]
    assert counts(5, 1, 3) is None  # no multiple of 2
    assert counts(0.5, 0, 3) is None
    assert counts(-1, 0, 3) is None
    assert counts(float("nan"), 0, 3) is None
    assert counts(100**3, 0, 3) is None
    assert counts(100**3 - 1, 0, 3) == [99, 99, 99]
    assert in_words(None) == ""
    assert in_words([0, 1, 0]) == " (the number of ranks 0, 2 is not in it)"
    assert in_words([1, 3, 0]) == " (the number of rank 2 is not in it; rank 1's 3 times)"


def sent(*messages):
    """The calls of one rank, from (target, bytes)."""
    return [Call("send", to, nbytes) for to, nbytes in messages] + [Call("recv", 0, 999)]


def around(n, nbytes, times):
    return [sent(*[((rank + 1) % n, nbytes)] * times) for rank in range(n)]


def refused(n, numel, traffic):
    with pytest.raises(NotRight) as wrong:
        judge_ring_traffic(n, numel, traffic)
    return wrong.value


def test_the_bytes_that_a_ring_needs_are_enough_and_no_more():
    judge_ring_traffic(4, 10, around(4, 24, 6))  # chunks of 3 numbers of 8 bytes, in 2 (N-1) steps
    judge_ring_traffic(3, 7, around(3, 24, 4))
    traffic = around(4, 24, 6)
    traffic[2][0] = Call("send", 3, 32)  # a number more, on one rank
    wrong = refused(4, 10, traffic)
    assert "No rank needs to send more than 144 bytes" in wrong.hint
    assert wrong.finding.splitlines() == [
        "the right sum of 10 numbers (80 bytes), but",
        "  rank 0 messages sent: 6, bytes: 144",
        "  rank 1 messages sent: 6, bytes: 144",
        "  rank 2 messages sent: 6, bytes: 152",
        "  rank 3 messages sent: 6, bytes: 144",
    ]
    assert "Whole buffers" in refused(4, 10, around(4, 80, 3)).hint


def test_a_rank_of_a_ring_has_one_neighbour():
    traffic = around(4, 16, 6)
    traffic[3] = sent(*[(0, 16)] * 5, (2, 16))
    wrong = refused(4, 8, traffic)
    assert wrong.finding.endswith("\n  and one of them sends to ranks 0, 2")
    assert "To how many other ranks" in wrong.hint
    traffic[3] = sent(*[(0, 16)] * 5, (2, 160))
    assert "In a ring all ranks send equally much" in refused(4, 8, traffic).hint


def hint(after, *, returned=None, sends=6):
    after = [[float(value) for value in row] for row in after]
    n, numel = len(after), len(after[0])
    total = [
        sum(column) for column in zip(*(contribution(r, numel) for r in range(n)), strict=True)
    ]
    traffic = [sent(*[(1, 8)] * sends)] * n
    return hint_ring_all_reduce(after, total, returned or [None] * n, traffic)


SUM = [10101, 20202, 30303, 40404, 50505, 60606, 70707]  # of 3 ranks, 7 numbers


def changed(**rows):
    """The sum on 3 ranks, with other numbers: rank1={4: value}."""
    after = [list(SUM) for _ in range(3)]
    for name, values in rows.items():
        for place, value in values.items():
            after[int(name[-1])][place] = value
    return after


def test_the_hint_for_what_the_ranks_hold():
    own = [contribution(rank, 7) for rank in range(3)]
    assert "returned the sum" in hint(own, returned=[SUM] * 3)
    assert "holds what it held before" in hint(own, returned=[None, SUM, SUM])
    assert "Ranks 0, 2 alone" in hint(changed(rank1={0: 1}))
    tail = {6: 7}
    assert "The last 1 were left out: 7 numbers are not divisible by 3" in hint(
        changed(rank0=tail, rank1=tail, rank2=tail)
    )
    assert "That is the mean" in hint([[value / 3 for value in SUM]] * 3)
    first = {0: 20202}
    assert "in the place of another" in hint(changed(rank0=first, rank1=first, rank2=first))


def test_the_hint_for_numbers_that_came_twice_depends_on_the_messages():
    twice = changed(**{f"rank{r}": {1: 20402} for r in range(3)})  # rank 1's number twice
    assert "a rank sent 5 messages" in hint(twice, sends=5)
    assert "in both phases" in hint(twice, sends=4)
    assert "in both phases" in hint(twice, sends=3)
    assert "one that has just grown" in hint(twice, sends=2)


def test_the_hint_for_numbers_that_are_missing():
    lacks = changed(**{f"rank{r}": {1: 20002, 2: 30003, 3: 40004} for r in range(3)})
    assert "half of the way" in hint(lacks, sends=2)
    assert "On each rank one chunk was left out" in hint(lacks, sends=4)
    more = changed(**{f"rank{r}": {k: 2 * (k + 1) // 2 for k in range(4)} for r in range(3)})
    assert "Follow one chunk" in hint(more, sends=4)


def test_a_ring_of_fewer_numbers_than_ranks_may_send_as_it_likes():
    def runs(ranks, numel, nbytes):
        each = [contribution(rank, numel) for rank in range(ranks)]
        total = [sum(column) for column in zip(*each, strict=True)]
        calls = sent((1, nbytes))
        return Runs([{"after": total, "returned": None, "calls": calls}] * ranks)

    judge_ring_all_reduce(runs(4, 3, 9999), numel=3)
    judge_ring_all_reduce(runs(1, 9, 9999), numel=9)
    with pytest.raises(NotRight):
        judge_ring_all_reduce(runs(4, 4, 9999), numel=4)


def test_the_sum_is_exact_in_float64():
    assert torch.tensor(contribution(3, 80), dtype=torch.float64).tolist() == contribution(3, 80)

"""The judges of tree and all-to-all: what they say of numbers and messages, without ranks."""

from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.traffic import Call
from helpers.check.week01 import collectives as exercises
from helpers.check.week01.collectives import numbers, part
from helpers.runtime.runs import Runs
from notebooks.solutions import week01
from tests.check.alone import found_alone


def send(to, nbytes=12):
    return Call("send", to, nbytes)


def receive(source, nbytes=12):
    return Call("recv", source, nbytes)


@pytest.mark.usefixtures("shared_ranks")
def test_a_mistake_of_the_last_rank_in_one_case_alone_is_found():
    def on_the_last(worker, tensor, source):
        week01.tree_broadcast(worker, tensor, source)
        tensor[-1] += worker.rank == worker.world_size - 1

    found = found_alone(check.tree_broadcast, week01.tree_broadcast, on_the_last)
    assert [(one.splitlines()[0], one.splitlines()[-1]) for one in found] == [
        ("with 4 ranks: from source 0, [0.0, 1.0, 2.0]", "  rank 3 holds [0.0, 1.0, 3.0]"),
        ("with 2 ranks: from source 1, [10.0, 11.0, 12.0]", "  rank 1 holds [10.0, 11.0, 13.0]"),
        ("with 5 ranks: from source 3, [30.0, 31.0, 32.0]", "  rank 4 holds [30.0, 31.0, 33.0]"),
        ("with 8 ranks: from source 6, [60.0, 61.0, 62.0]", "  rank 7 holds [60.0, 61.0, 63.0]"),
        ("with 1 rank: from source 0, [0.0, 1.0, 2.0]", "  rank 0 holds [0.0, 1.0, 3.0]"),
    ]


@pytest.mark.usefixtures("shared_ranks")
def test_a_wrong_entry_of_the_last_rank_in_one_case_alone_is_found():
    def one_wrong(worker, parts):
        result = week01.all_to_all(worker, parts)
        result[0][-1] += worker.rank == worker.world_size - 1
        return result

    found = found_alone(check.all_to_all, week01.all_to_all, one_wrong)
    assert [one.splitlines()[:2] for one in found] == [
        [f"{ranks}: number k of a part is 100·source + 10·target + k % 10", entry]
        for ranks, entry in (
            ("with 3 ranks", "  entry 0 of rank 2: 22, wrong"),
            ("with 4 ranks", "  entry 0 of rank 3: 31, wrong"),
            ("with 2 ranks", "  entry 0 of rank 1: 20: rank 0's part for rank 2"),
            ("with 1 rank", "  entry 0 of rank 0: 2, wrong"),
        )
    ]
    assert found[0].splitlines()[2:] == ["  entry 1 of rank 2: right", "  entry 2 of rank 2: right"]


def judged_tree(calls, source, after=None, returned=None):
    n = len(calls)
    after = after or [numbers(source)] * n
    rows = zip(after, returned or [None] * n, calls, strict=True)
    runs = Runs([{"after": a, "returned": r, "calls": c} for a, r, c in rows])
    exercises.judge_tree_broadcast(runs, source)


def refused(judge, *given, **named):
    with pytest.raises(NotRight) as wrong:
        judge(*given, **named)
    return wrong.value


def test_three_ranks_need_two_messages_in_two_steps():
    judged_tree([[send(1), send(2)], [receive(0)], [receive(0)]], 0)
    judged_tree([[send(2)], [receive(2)], [receive(0), send(1)]], 0)
    wrong = refused(judged_tree, [[send(1), send(2)], [receive(0), send(2)],
                                  [receive(0), receive(1)]], 0)  # fmt: skip
    assert wrong.finding == "3 messages, where 2 ranks lack the numbers"
    assert "that it has already" in wrong.hint


def test_steps_that_are_too_many_are_counted():
    flat = [[send(1), send(2), send(3)], *([receive(0)] for _ in range(3))]
    wrong = refused(judged_tree, flat, 0)
    assert wrong.finding.splitlines() == [
        "right, but 3 steps one after another; 2 can do",
        "  rank 0 sends 3", "  rank 1 sends 0", "  rank 2 sends 0", "  rank 3 sends 0",
    ]  # fmt: skip
    assert "The source sends every message itself" in wrong.hint
    turned = [[receive(3)], [receive(3)], [receive(3)], [send(0), send(1), send(2)]]
    assert "The source sends every message itself" in refused(judged_tree, turned, 3).hint


@pytest.mark.parametrize(
    ("sends", "source", "hint"),
    [
        ([0, 3, 0, 0], 1, "sends every message itself"),
        ([3, 0, 1, 0], 0, "while others still lack them"),
        ([1, 1, 1, 0], 0, "then rests"),
        ([2, 1, 0, 0], 0, "while others still lack them"),
    ],
)
def test_the_hint_for_too_many_steps(sends, source, hint):
    assert hint in exercises.hint_steps(sends, source)


OWN = [numbers(rank) for rank in range(4)]


@pytest.mark.parametrize(
    ("after", "source", "returned", "hint"),
    [
        ([OWN[0]] * 4, 2, [None] * 4, "Every rank has rank 0's numbers"),
        ([OWN[2], OWN[2], OWN[0], OWN[2]], 2, [None] * 4, "does the source receive"),
        (OWN, 2, [OWN[2], OWN[2], None, OWN[2]], "returned the numbers"),
        (OWN, 2, [OWN[2], None, OWN[2], OWN[2]], "holds what it held before"),
        (
            [OWN[2], OWN[1], OWN[2], OWN[3]],
            2,
            [None] * 4,
            "Ranks 1, 3 got nothing. Draw for 4 ranks",
        ),
        ([OWN[0], OWN[0], OWN[0], OWN[3]], 0, [None] * 4, "Rank 3 got nothing"),
        ([OWN[2], OWN[0], OWN[2], OWN[2]], 2, [None] * 4, "before it had got"),
    ],
)
def test_the_hint_for_wrong_numbers(after, source, returned, hint):
    assert hint in exercises.hint_tree_broadcast(after, OWN, source, returned)


def right(rank, n, numel, **changes):
    return {"entries": [True] * n, "kind": "list", "changed": [], "aliases": False, "same": False,
            "calls": [send(to, 4 * numel) for to in range(n) if to != rank]} | changes  # fmt: skip


def judged(n=3, numel=2, **of_last):
    runs = [right(rank, n, numel) for rank in range(n - 1)]
    runs.append(right(n - 1, n, numel, **of_last))
    return refused(exercises.judge_all_to_all, Runs(runs), numel)


def test_the_parts_belong_to_the_caller():
    wrong = judged(changed=[0, 2])
    assert wrong.finding == "rank 2's parts for ranks 0, 2 have changed"
    assert "Receive into tensors of your own" in wrong.hint
    assert judged(aliases=True).finding.startswith("rank 2: a tensor that was returned shares")


def test_the_number_of_entries():
    assert judged(entries=None, kind="Tensor").finding == "rank 2 returned Tensor"
    wrong = judged(entries=[True] * 2)
    assert wrong.finding == "rank 2 returned a list of 2, of 3 ranks"
    assert "One entry is missing" in wrong.hint
    assert judged(entries=[True] * 4).hint == "One each."
    assert judged(entries=[]).hint == "One each."


def test_the_bytes_of_n_minus_1_parts_are_enough():
    enough = [right(rank, 3, 2) for rank in range(3)]
    exercises.judge_all_to_all(Runs(enough), 2)
    wrong = judged(calls=[send(0, 8), send(1, 12)])
    assert wrong.finding == (
        "right, but\n  rank 0 sends 16 bytes\n  rank 1 sends 16 bytes\n  rank 2 sends 20 bytes\n"
        "where 16 would do"
    )


def number(source, target, k=0):
    return part(source, target, k + 1)[k].item()


@pytest.mark.parametrize(
    ("entries", "same", "hint"),
    [
        ([number(0, 1), True, True], True, "the last message is in all of them"),
        ([True, True, "None"], False, "No message brings that entry"),
        ([True, "shape (3,)", True], False, "Each entry is one tensor"),
        ([number(1, 2), number(0, 2), True], False, "in another order"),
        ([number(1, 2), number(0, 2), number(0, 2)], False, "in another order"),
        ([number(2, 0), number(2, 1), True], False, "still holds its own parts"),
        ([number(0, 1), number(1, 0), True], False, "meant for other ranks"),
        ([number(1, 0), 0.5, True], False, "into which entry does d receive it"),
        ([number(1, 0), number(0, 1), True], False, "into which entry does d receive it"),
    ],
)
def test_the_hint_for_the_entries_of_rank_2(entries, same, hint):
    wrong = judged(entries=entries, same=same)
    assert hint in wrong.hint


def test_the_words_for_an_entry():
    say, origin = exercises.say, exercises.origin
    assert say(True, 1, 2, 5) == "right"
    assert say("shape (3,)", 1, 2, 5) == "shape (3,)"
    assert say(304.0, 1, 2, 5) == "304: rank 3's part for rank 0"
    assert say(121.0, 1, 2, 5) == "121, wrong"
    assert say(7.0, 1, 2, 5) == "7, wrong"
    assert say(1200.0, 1, 2, 5) == "1200, wrong"
    for nothing in (-1.0, 1000.0, 0.5, float("nan"), True, "a word"):
        assert origin(nothing, 5) is None
    assert origin(999.0, 5) == (9, 9)


def test_the_first_wrong_number_of_an_entry():
    one = part(1, 2, 12)
    assert one.tolist()[-2:] == [120.0, 121.0]
    one[3], one[5] = 7.0, 9.0
    assert exercises.first_wrong(one, 1, 2, 12) == 7.0
    assert torch.equal(part(3, 1, 2), torch.tensor([310.0, 311.0]))
    assert numbers(3) == [30.0, 31.0, 32.0]


def reported(solve, numel=3, rank=1):
    """What one of three ranks reports of an all-to-all that sends nothing."""
    worker = SimpleNamespace(rank=rank, world_size=3)
    return exercises.run_all_to_all(worker, solve, numel)


def arrived(worker, parts):
    return [part(source, 1, 3) for source in range(3)]


def test_what_a_rank_reports_of_an_all_to_all():
    right = {"entries": [True] * 3, "kind": "list", "changed": [], "aliases": False,
             "same": False, "calls": [], "unwaited": 0}  # fmt: skip
    assert reported(arrived) == right
    assert reported(lambda *given: tuple(arrived(*given))) == right | {"kind": "tuple"}
    found = reported(lambda worker, parts: torch.stack(parts))
    assert (found["entries"], found["kind"]) == (None, "Tensor")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_entry_that_shares_memory_is_enough(place):
    def one_alias(worker, parts):
        return [parts[s][:] if s == place else one for s, one in enumerate(arrived(worker, parts))]

    found = reported(one_alias)
    assert found["aliases"]
    assert not found["same"]

    def twice(worker, parts):
        entries = arrived(worker, parts)
        entries[place] = entries[place - 1]
        return entries

    found = reported(twice)
    assert found["same"]
    assert not found["aliases"]


def test_the_entries_that_are_wrong():
    def wrong(worker, parts):
        first, _, third = arrived(worker, parts)
        third[1:] = 7.5
        return [first[None], None, third]

    assert reported(wrong)["entries"] == ["shape (1, 3)", "None", 7.5]


def test_the_parts_that_have_changed():
    def writes(worker, parts):
        parts[0][-1] = parts[2][0] = -1.0
        return parts

    found = reported(writes)
    assert found["changed"] == [0, 2]
    assert found["aliases"]

    def other_list(worker, parts):
        """The list is a copy: only the tensors are the caller's."""
        parts[:] = [torch.zeros(3)]
        return arrived(worker, parts)

    assert reported(other_list)["changed"] == []


def test_what_a_rank_reports_of_a_broadcast():
    def solve(worker, tensor, source):
        tensor[1] = 10 * source + worker.rank
        return tensor + 1

    found = exercises.run_tree_broadcast(SimpleNamespace(rank=2, world_size=3), solve, 1)
    assert found["after"] == [20, 12, 22]
    assert found["returned"] == [21, 13, 23]
    worker = SimpleNamespace(rank=2, world_size=3)
    assert exercises.run_tree_broadcast(worker, lambda *given: None, 1)["returned"] is None

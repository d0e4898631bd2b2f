"""Tree and all-to-all: solutions pass, common mistakes fail with their own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week01 import collectives as exercises
from notebooks.solutions import week01
from tests.check.asked import drawn_anew

EXERCISES = ("tree_broadcast", "all_to_all")


def stub(*args):
    raise NotImplementedError


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_passes(name):
    verdict = getattr(check, name)(getattr(week01, name))
    assert verdict, verdict


@pytest.mark.parametrize("name", EXERCISES)
def test_the_stub_is_told_apart(name):
    assert getattr(check, name)(stub).status == "not written yet"


def exchange(going, to, coming, source):
    for request in [dist.isend(going, to), dist.irecv(coming, source)]:
        request.wait()


def flat(worker, tensor, source):
    if worker.rank != source:
        dist.recv(tensor, source)
        return
    for rank in range(worker.world_size):
        if rank != source:
            dist.send(tensor, rank)


def chain(worker, tensor, source):
    n = worker.world_size
    away = (worker.rank - source) % n
    if away > 0:
        dist.recv(tensor, (worker.rank - 1) % n)
    if away < n - 1:
        dist.send(tensor, (worker.rank + 1) % n)


def binary_tree(worker, tensor, source):
    """A heap: two children each. The root rests after its second message."""
    n = worker.world_size
    away = (worker.rank - source) % n
    if away > 0:
        dist.recv(tensor, ((away - 1) // 2 + source) % n)
    for child in (2 * away + 1, 2 * away + 2):
        if child < n:
            dist.send(tensor, (child + source) % n)


def by_the_collective(worker, tensor, source):
    dist.broadcast(tensor, source)


def source_0(worker, tensor, source):
    week01.tree_broadcast(worker, tensor, 0)


def powers_of_two_only(worker, tensor, source):
    n, have = worker.world_size, 1
    away = (worker.rank - source) % n
    while 2 * have <= n:
        if away < have:
            dist.send(tensor, (worker.rank + have) % n)
        elif away < 2 * have:
            dist.recv(tensor, (worker.rank - have) % n)
        have *= 2


def sends_to_who_is_not_there(worker, tensor, source):
    have = 1
    away = (worker.rank - source) % worker.world_size
    while have < worker.world_size:
        if away < have:
            dist.send(tensor, (worker.rank + have) % worker.world_size)
        elif away < 2 * have:
            dist.recv(tensor, (worker.rank - have) % worker.world_size)
        have *= 2


def returns_it(worker, tensor, source):
    mine = tensor.clone()
    week01.tree_broadcast(worker, mine, source)
    return mine


def binds_a_name(worker, tensor, source):
    mine = tensor.clone()
    week01.tree_broadcast(worker, mine, source)
    tensor = mine


def told_twice(worker, tensor, source):
    week01.tree_broadcast(worker, tensor, source)
    week01.tree_broadcast(worker, tensor, source)


def one_told_twice(worker, tensor, source):
    week01.tree_broadcast(worker, tensor, source)
    other = (source + 1) % worker.world_size
    if worker.rank == source != other:
        dist.send(tensor, other)
    if worker.rank == other != source:
        dist.recv(tensor, source)


def flat_from_others(worker, tensor, source):
    """The tree only where rank 0 is the source."""
    (flat if source else week01.tree_broadcast)(worker, tensor, source)


def writes_into_the_source(worker, tensor, source):
    week01.tree_broadcast(worker, tensor, source)
    if worker.rank == source:
        tensor.zero_()


def not_waited_for(worker, tensor, source):
    if worker.rank == source:
        for rank in range(worker.world_size):
            if rank != source:
                dist.isend(tensor, rank)
    else:
        dist.irecv(tensor, source)


def passes_on_too_early(worker, tensor, source):
    n = worker.world_size
    away = (worker.rank - source) % n
    early = tensor.clone()
    if away > 0:
        dist.recv(tensor, (worker.rank - 1) % n)
    if away < n - 1:
        dist.send(early, (worker.rank + 1) % n)


def own_part_missing(worker, parts):
    result = week01.all_to_all(worker, parts)
    return result[: worker.rank] + result[worker.rank + 1 :]


def own_part_forgotten(worker, parts):
    result = week01.all_to_all(worker, parts)
    result[worker.rank] = torch.zeros_like(parts[0])
    return result


def own_part_none(worker, parts):
    result = week01.all_to_all(worker, parts)
    result[worker.rank] = None
    return result


def own_part_aliased(worker, parts):
    result = week01.all_to_all(worker, parts)
    result[worker.rank] = parts[worker.rank]
    return result


def one_buffer_for_all(worker, parts):
    return [week01.all_to_all(worker, parts)[-1]] * worker.world_size


def in_order_of_arrival(worker, parts):
    result = week01.all_to_all(worker, parts)
    return [result[(worker.rank - step) % len(parts)] for step in range(len(parts))]


def own_to_all(worker, parts):
    return week01.all_to_all(worker, [parts[worker.rank]] * len(parts))


def returns_its_inputs(worker, parts):
    return [part.clone() for part in parts]


def receives_into_its_parts(worker, parts):
    result = week01.all_to_all(worker, parts)
    for part, new in zip(parts, result, strict=True):
        part.copy_(new)
    return result


def returns_nothing(worker, parts):
    week01.all_to_all(worker, parts)


def returns_one_tensor(worker, parts):
    return torch.cat(week01.all_to_all(worker, parts))


def all_sends_first(worker, parts):
    others = [rank for rank in range(len(parts)) if rank != worker.rank]
    for rank in others:
        dist.send(parts[rank], rank)
    result = [part.clone() for part in parts]
    for rank in others:
        dist.recv(result[rank], rank)
    return result


def all_receives_first(worker, parts):
    others = [rank for rank in range(len(parts)) if rank != worker.rank]
    result = [part.clone() for part in parts]
    for rank in others:
        dist.recv(result[rank], rank)
    for rank in others:
        dist.send(parts[rank], rank)
    return result


def to_itself(worker, parts):
    for rank, part in enumerate(parts):
        dist.isend(part, rank)


def one_part_to_spare(worker, parts):
    result, n = week01.all_to_all(worker, parts), len(parts)
    exchange(parts[0], (worker.rank + 1) % n, torch.empty_like(parts[0]), (worker.rank - 1) % n)
    return result


def everything_to_everybody(worker, parts):
    n, rank, row = worker.world_size, worker.rank, torch.cat(parts)
    rows = [row.clone() for _ in parts]
    for step in range(1, n):
        exchange(row, (rank + step) % n, rows[(rank - step) % n], (rank - step) % n)
    return [one.chunk(n)[rank].clone() for one in rows]


TREE_BROADCAST_MISTAKES = [
    (flat, "sends every message itself"),
    (chain, "sends once and then rests"),
    (binary_tree, "sends nothing, while others"),
    (by_the_collective, "Messages only"),
    (source_0, "Which rank is the source"),
    (powers_of_two_only, "got nothing. Draw for 5 ranks"),
    (returns_it, "returned the numbers"),
    (binds_a_name, "holds what it held before"),
    (told_twice, "that it has already"),
    (one_told_twice, "that it has already"),
    (flat_from_others, "sends every message itself"),
    (writes_into_the_source, "own numbers have changed"),
    (not_waited_for, "only begin"),
    (passes_on_too_early, "before it had got"),
]

ALL_TO_ALL_MISTAKES = [
    (own_part_missing, "send no message to this rank"),
    (own_part_forgotten, "No message brings that entry"),
    (own_part_none, "No message brings that entry"),
    (own_part_aliased, "the other changes, too"),
    (one_buffer_for_all, "are the same tensor"),
    (in_order_of_arrival, "in another order"),
    (own_to_all, "meant for other ranks"),
    (returns_its_inputs, "still holds its own"),
    (receives_into_its_parts, "belong to the caller"),
    (returns_nothing, "Return a list"),
    (returns_one_tensor, "Return a list"),
    (to_itself, "for itself, it has already"),
    (one_part_to_spare, "a rank that does not need it"),
    (everything_to_everybody, "do not need it"),
]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), TREE_BROADCAST_MISTAKES)
def test_a_mistake_in_tree_broadcast_gets_its_own_hint(mistake, hint):
    verdict = check.tree_broadcast(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


@pytest.mark.usefixtures("shared_ranks")
def test_the_fewest_steps_are_known_for_each_number_of_ranks():
    found = check.tree_broadcast(flat).finding
    assert found.startswith("with 4 ranks: right, but 3 steps one after another; 2 can do")


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), ALL_TO_ALL_MISTAKES)
def test_a_mistake_in_all_to_all_gets_its_own_hint(mistake, hint):
    verdict = check.all_to_all(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


@pytest.mark.parametrize(
    ("exercise", "mistake", "hint"),
    [
        ("all_to_all", all_sends_first, "Which rank receives?"),
        ("all_to_all", all_receives_first, "no message is on its way"),
        ("tree_broadcast", sends_to_who_is_not_there, "with this number of ranks"),
    ],
)
def test_a_deadlock_shows_each_rank_s_line(monkeypatch, exercise, mistake, hint):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 2.0)
    verdict = getattr(check, exercise)(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert f"in {mistake.__name__}" in verdict.finding
    assert "site-packages" not in verdict.finding


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: exercises.numbers(1))
    assert drawn_anew(lambda: exercises.part(0, 1, 3))

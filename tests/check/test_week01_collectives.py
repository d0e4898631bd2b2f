"""Each solution passes, stubs are told apart, and common mistakes fail with their own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from notebooks.solutions import week01

EXERCISES = ("tree_broadcast", "ring_all_reduce", "all_to_all", "bytes_on_the_wire")


def stub(*args):
    raise NotImplementedError


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


# ---- tree_broadcast


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


# ---- ring_all_reduce


def ring(worker, tensor, *, reduce=None, gather=None, add=True, copy=True):
    """The ring, with numbers of steps and with what is done to a chunk that comes in."""
    n, rank = worker.world_size, worker.rank
    chunks = tensor.tensor_split(n)
    phases = [
        (0, n - 1 if reduce is None else reduce),
        (n - 1, n - 1 if gather is None else gather),
    ]
    for start, steps in phases:
        for step in range(start, start + steps):
            coming = chunks[(rank - step - 1) % n]
            incoming = torch.empty_like(coming)
            exchange(chunks[(rank - step) % n], (rank + 1) % n, incoming, (rank - 1) % n)
            if (add and not start) or (start and not copy):
                coming += incoming
            else:
                coming.copy_(incoming)


def one_chunk_left_out(worker, tensor):
    ring(worker, tensor, gather=max(0, worker.world_size - 2))


def one_sum_left_out(worker, tensor):
    ring(worker, tensor, reduce=max(0, worker.world_size - 2))


def first_phase_only(worker, tensor):
    ring(worker, tensor, gather=0)


def n_steps_of_sums(worker, tensor):
    ring(worker, tensor, reduce=worker.world_size)


def twice_round(worker, tensor):
    """Sums go on after the chunks are finished."""
    ring(worker, tensor, reduce=2 * worker.world_size - 1, gather=0)


def n_steps_of_copies(worker, tensor):
    ring(worker, tensor, gather=worker.world_size)


def sums_in_place_of_copies(worker, tensor):
    ring(worker, tensor, copy=False)


def copies_in_place_of_sums(worker, tensor):
    ring(worker, tensor, add=False)


def own_chunk_in_place_of_the_sum(worker, tensor):
    """Passes on its own numbers, not what has been added up."""
    n, rank = worker.world_size, worker.rank
    own, chunks = tensor.clone().tensor_split(n), list(tensor.tensor_split(n))
    for step in range(n - 1):
        incoming = torch.empty_like(chunks[(rank - step - 1) % n])
        exchange(own[(rank - step) % n], (rank + 1) % n, incoming, (rank - 1) % n)
        chunks[(rank - step - 1) % n] += incoming


def rest_left_out(worker, tensor):
    n = worker.world_size
    week01.ring_all_reduce(worker, tensor[: len(tensor) // n * n])


def whole_buffers(worker, tensor):
    n, rank = worker.world_size, worker.rank
    going = tensor.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(going)
        exchange(going, (rank + 1) % n, incoming, (rank - 1) % n)
        tensor += incoming
        going = incoming


def by_way_of_rank_0(worker, tensor):
    if worker.rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    for source in range(1, worker.world_size):
        part = torch.empty_like(tensor)
        dist.recv(part, source)
        tensor += part
    for target in range(1, worker.world_size):
        dist.send(tensor, target)


def only_rank_0(worker, tensor):
    mine = tensor.clone()
    week01.ring_all_reduce(worker, mine)
    if worker.rank == 0:
        tensor.copy_(mine)


def ring_returns_it(worker, tensor):
    mine = tensor.clone()
    week01.ring_all_reduce(worker, mine)
    return mine


def ring_binds_a_name(worker, tensor):
    mine = tensor.clone()
    week01.ring_all_reduce(worker, mine)
    tensor = mine


def all_send_first(worker, tensor):
    n = worker.world_size
    if n > 1:
        dist.send(tensor, (worker.rank + 1) % n)
        dist.recv(tensor, (worker.rank - 1) % n)


def wrong_dtype(worker, tensor):
    n, rank = worker.world_size, worker.rank
    incoming = torch.empty(len(tensor))  # float32
    if n > 1:
        exchange(tensor, (rank + 1) % n, incoming, (rank - 1) % n)


def reduces_by_the_collective(worker, tensor):
    dist.all_reduce(tensor)


def shifted(worker, tensor):
    week01.ring_all_reduce(worker, tensor)
    tensor.copy_(tensor.roll(1))


def pairwise(worker, tensor):
    """No ring: each rank sends its parts straight to all the others."""
    chunks = list(tensor.tensor_split(worker.world_size))
    n, rank = worker.world_size, worker.rank
    mine = chunks[rank].clone()
    for step in range(1, n):
        incoming = torch.empty_like(mine)
        exchange(chunks[(rank + step) % n], (rank + step) % n, incoming, (rank - step) % n)
        chunks[rank] += incoming
    for step in range(1, n):
        exchange(chunks[rank], (rank + step) % n, chunks[(rank - step) % n], (rank - step) % n)


def padded(worker, tensor):
    """Right: zeros make up the numbers that lack."""
    n = worker.world_size
    whole = torch.zeros(-(-len(tensor) // n) * n, dtype=tensor.dtype)
    whole[: len(tensor)] = tensor
    week01.ring_all_reduce(worker, whole)
    tensor.copy_(whole[: len(tensor)])


# ---- all_to_all


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


def everything_to_everybody(worker, parts):
    n, rank, row = worker.world_size, worker.rank, torch.cat(parts)
    rows = [row.clone() for _ in parts]
    for step in range(1, n):
        exchange(row, (rank + step) % n, rows[(rank - step) % n], (rank - step) % n)
    return [one.chunk(n)[rank].clone() for one in rows]


# ---- bytes_on_the_wire


def n_for_n_minus_1(collective, ranks, size):
    return week01.bytes_on_the_wire(collective, ranks, size) * ranks / max(1, ranks - 1)


def one_phase(collective, ranks, size):
    return (ranks - 1) * size / ranks


def numbers_for_bytes(collective, ranks, size):
    return week01.bytes_on_the_wire(collective, ranks, size) / 4


def as_an_all_reduce(collective, ranks, size):
    if collective == "broadcast":
        return (ranks - 1) * size
    return 2 * (ranks - 1) * size / ranks


def buffers_for_chunks(collective, ranks, size):
    factor = 1 if collective == "broadcast" else ranks
    return factor * week01.bytes_on_the_wire(collective, ranks, size)


def one_rank_of_a_broadcast(collective, ranks, size):
    return size if collective == "broadcast" else week01.bytes_on_the_wire(collective, ranks, size)


def four_ranks_always(collective, ranks, size):
    return week01.bytes_on_the_wire(collective, min(ranks, 4), size)


def no_number(collective, ranks, size):
    return None


MISTAKES = {
    "tree_broadcast": [
        (flat, "sends every message itself"),
        (chain, "sends once and then rests"),
        (binary_tree, "sends nothing, while others"),
        (by_the_collective, "Messages only"),
        (source_0, "Who is the source"),
        (powers_of_two_only, "got nothing. Draw for 5 ranks"),
        (returns_it, "were returned"),
        (binds_a_name, "holds what it held before"),
        (told_twice, "what it has already"),
        (writes_into_the_source, "own numbers have changed"),
        (not_waited_for, "only begin"),
        (passes_on_too_early, "before it had got"),
    ],
    "ring_all_reduce": [
        (one_chunk_left_out, "must come in"),
        (one_sum_left_out, "Follow one chunk"),
        (first_phase_only, "half of the way"),
        (n_steps_of_sums, "met every rank"),
        (n_steps_of_copies, "met every rank"),
        (twice_round, "to meet every rank once"),
        (sums_in_place_of_copies, "always to be added"),
        (copies_in_place_of_sums, "Follow one chunk"),
        (own_chunk_in_place_of_the_sum, "Follow one chunk"),
        (rest_left_out, "not divisible by 4"),
        (whole_buffers, "Whole buffers went round"),
        (by_way_of_rank_0, "nobody is special"),
        (only_rank_0, "Rank 0 alone"),
        (ring_returns_it, "was returned"),
        (ring_binds_a_name, "holds what it held before"),
        (wrong_dtype, "in numbers and in dtype"),
        (reduces_by_the_collective, "Messages only"),
        (shifted, "where another belongs"),
        (pairwise, "To how many others"),
    ],
    "all_to_all": [
        (own_part_missing, "sends no message to this one"),
        (own_part_forgotten, "No message brings that one"),
        (own_part_none, "No message brings that one"),
        (own_part_aliased, "the other changes, too"),
        (one_buffer_for_all, "one and the same tensor"),
        (in_order_of_arrival, "in another order"),
        (own_to_all, "meant for others"),
        (returns_its_inputs, "still holds its own"),
        (receives_into_its_parts, "belong to the caller"),
        (returns_nothing, "Return a list"),
        (returns_one_tensor, "Return a list"),
        (to_itself, "no line from a rank to itself"),
        (everything_to_everybody, "no use for it"),
    ],
    "bytes_on_the_wire": [
        (n_for_n_minus_1, "One too many"),
        (one_phase, "one phase of the ring"),
        (numbers_for_bytes, "numbers of four bytes"),
        (as_an_all_reduce, "whole all-reduce"),
        (buffers_for_chunks, "whole buffers"),
        (one_rank_of_a_broadcast, "all ranks together are asked for"),
        (four_ranks_always, "Draw it"),
        (no_number, "Return one number"),
    ],
}


@pytest.mark.parametrize(
    ("exercise", "mistake", "hint"),
    [
        pytest.param(exercise, mistake, hint, id=f"{exercise}-{mistake.__name__}")
        for exercise, mistakes in MISTAKES.items()
        for mistake, hint in mistakes
    ],
)
def test_a_mistake_gets_its_own_hint(exercise, mistake, hint):
    verdict = getattr(check, exercise)(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


@pytest.mark.parametrize(
    ("exercise", "mistake", "hint"),
    [
        ("all_to_all", all_sends_first, "Who is there to receive?"),
        ("all_to_all", all_receives_first, "no message is on its way"),
        ("ring_all_reduce", all_send_first, "Who is there to receive?"),
        ("tree_broadcast", sends_to_who_is_not_there, "with this number of ranks"),
    ],
)
def test_a_deadlock_shows_each_rank_s_line(monkeypatch, exercise, mistake, hint):
    monkeypatch.setattr("helpers.check.oracle.PATIENCE", 1.0)
    verdict = getattr(check, exercise)(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert f"in {mistake.__name__}" in verdict.finding
    assert "site-packages" not in verdict.finding


def test_padding_is_right():
    verdict = check.ring_all_reduce(padded)
    assert verdict, verdict

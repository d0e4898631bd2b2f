"""The ring: the solution passes, common mistakes fail with their own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week01.ring import contribution
from notebooks.solutions import week01
from tests.check.asked import drawn_anew

EXERCISES = ("ring_all_reduce",)


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


def mean(worker, tensor):
    week01.ring_all_reduce(worker, tensor)
    tensor /= worker.world_size


def all_into_one_size(worker, tensor):
    """Receives every chunk into as much room as the first one takes."""
    n, rank = worker.world_size, worker.rank
    chunks = list(tensor.tensor_split(n))
    for step in range(2 * (n - 1)):
        chunk = chunks[(rank - step - 1) % n]
        incoming = torch.zeros_like(chunks[0])
        exchange(chunks[(rank - step) % n], (rank + 1) % n, incoming, (rank - 1) % n)
        incoming = incoming[: len(chunk)]
        chunk.copy_(chunk + incoming if step < n - 1 else incoming)


def chunks_as_if_equal(worker, tensor):
    n, rank = worker.world_size, worker.rank
    chunks = list(tensor.tensor_split(n))
    for step in range(2 * (n - 1)):
        incoming = torch.zeros_like(chunks[0])
        exchange(chunks[(rank - step) % n], (rank + 1) % n, incoming, (rank - 1) % n)
        chunk = chunks[(rank - step - 1) % n]
        chunk.copy_(chunk + incoming if step < n - 1 else incoming)


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


def with_two_partners(worker, tensor):
    """No ring of 4: halves with one partner, quarters with another, and back."""
    if worker.world_size != 4 or len(tensor) % 4:
        return week01.ring_all_reduce(worker, tensor)
    mine, steps = tensor, []
    for bit in (1, 2):
        partner, halves = worker.rank ^ bit, mine.tensor_split(2)
        own, given = halves[:: -1 if worker.rank & bit else 1]
        incoming = torch.empty_like(own)
        exchange(given, partner, incoming, partner)
        own += incoming
        steps.append((own, given, partner))
        mine = own
    for own, given, partner in reversed(steps):
        exchange(own, partner, given, partner)


def one_rank_sends_more(worker, tensor):
    week01.ring_all_reduce(worker, tensor)
    part = tensor[:2].clone()
    if worker.world_size > 1 and worker.rank == 0:
        dist.send(part, 1)
    if worker.rank == 1:
        dist.recv(part, 0)


def padded(worker, tensor):
    """Right: zeros make up the numbers that lack."""
    n = worker.world_size
    whole = torch.zeros(-(-len(tensor) // n) * n, dtype=tensor.dtype)
    whole[: len(tensor)] = tensor
    week01.ring_all_reduce(worker, whole)
    tensor.copy_(whole[: len(tensor)])


def one_chunk_again_and_again(worker, tensor):
    """Sends chunk r in every step."""
    n, rank = worker.world_size, worker.rank
    chunks = tensor.tensor_split(n)
    for _ in range(n - 1):
        coming = chunks[(rank - 1) % n]
        incoming = torch.empty_like(coming)
        exchange(chunks[rank], (rank + 1) % n, incoming, (rank - 1) % n)
        coming += incoming


def sends_not_waited_for(worker, tensor):
    n, rank = worker.world_size, worker.rank
    chunks = tensor.tensor_split(n)
    for step in range(n - 1):
        coming = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(coming)
        dist.isend(chunks[(rank - step) % n], (rank + 1) % n)
        dist.irecv(incoming, (rank - 1) % n).wait()
        coming += incoming


def not_even_begun(worker, tensor):
    """Receives from the neighbour that it sends to."""
    right, coming = (worker.rank + 1) % worker.world_size, torch.empty_like(tensor)
    if worker.world_size > 1:
        exchange(tensor, right, coming, right)


def behind_the_last(worker, tensor):
    """No modulo: the last rank's right neighbour does not exist."""
    dist.isend(tensor, worker.rank + 1).wait()


RING_ALL_REDUCE_MISTAKES = [
    (one_chunk_left_out, "must arrive in each phase"),
    (one_sum_left_out, "Follow one chunk"),
    (first_phase_only, "half of the way"),
    (n_steps_of_sums, "met every rank"),
    (n_steps_of_copies, "met every rank"),
    (twice_round, "to meet every rank once"),
    (sums_in_place_of_copies, "always to be added"),
    (copies_in_place_of_sums, "Follow one chunk"),
    (own_chunk_in_place_of_the_sum, "Follow one chunk"),
    (mean, "That is the mean"),
    (all_into_one_size, "How large is the piece"),
    (chunks_as_if_equal, "not of one size"),
    (rest_left_out, "not divisible by 4"),
    (whole_buffers, "Whole buffers went round"),
    (by_way_of_rank_0, "send equally much"),
    (only_rank_0, "Rank 0 alone"),
    (ring_returns_it, "returned the sum"),
    (ring_binds_a_name, "holds what it held before"),
    (wrong_dtype, "in numbers and in dtype"),
    (reduces_by_the_collective, "Messages only"),
    (shifted, "in the place of another"),
    (pairwise, "To how many other ranks"),
    (with_two_partners, "To how many other ranks"),
    (one_rank_sends_more, "met every rank"),
    (behind_the_last, "What comes after the last"),
    (one_chunk_again_and_again, "one that it has sent before"),
    (sends_not_waited_for, "only begin"),
]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), RING_ALL_REDUCE_MISTAKES)
def test_a_mistake_in_ring_all_reduce_gets_its_own_hint(mistake, hint):
    verdict = check.ring_all_reduce(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [(all_send_first, "Which rank receives?"), (not_even_begun, "from just this one")],
)
def test_a_deadlock_shows_each_rank_s_line(monkeypatch, mistake, hint):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 2.0)
    verdict = check.ring_all_reduce(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert verdict.finding.count("test_ring.py, in ") == 4


def test_padding_is_right():
    verdict = check.ring_all_reduce(padded)
    assert verdict, verdict


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: contribution(1, 3))

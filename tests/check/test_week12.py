"""Week 12, beyond the loop over all exercises: references, other right answers."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check import week12 as exercises
from helpers.models.blockwise import attend, merge
from helpers.plans.sequence_order import ring_scores, zigzag


@pytest.mark.parametrize(("words", "given"), list(exercises.read_blocks()))
def test_blocks_merge_as_in_the_package(words, given):
    y, total = torch.zeros_like(given[0][0]), torch.full_like(given[1][0], -torch.inf)
    for block in zip(*given, strict=True):
        y, total = merge(y, total, *block)
    for found, right in zip(exercises.merged(*given), (y, total), strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


def test_merged_blocks_are_one_softmax():
    q, k, v = (exercises.normal(seed, 12, 4) for seed in (1, 2, 3))
    parts = [attend(q, k[at], v[at]) for at in (slice(5), slice(5, 6), slice(6, 12))]
    found = exercises.merged(*map(torch.stack, zip(*parts, strict=True)))
    for one, other in zip(found, attend(q, k, v), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("words", "text"), exercises.zigzag_seen.cases)
def test_the_mask_is_that_of_the_package_s_order(words, text):
    tokens, ranks, rank, source = text
    seen, parts = exercises.seen_by(*text), zigzag(tokens, ranks)
    own, others = ([place for piece in parts[one] for place in piece] for one in (rank, source))
    assert seen.tolist() == [[k <= q for k in others] for q in own]
    assert int(seen.sum()) == ring_scores(parts)[rank][(rank - source) % ranks]


def by_the_largest(y, L):
    top = L.amax(0)
    sums = (L - top).exp()
    return [(sums.unsqueeze(2) * y).sum(0) / sums.sum(0).unsqueeze(1), sums.sum(0).log() + top]


def by_loops(tokens, ranks, rank, source):
    parts = zigzag(tokens, ranks)
    own, others = ([p for piece in parts[one] for p in piece] for one in (rank, source))
    return torch.tensor([[int(k <= q) for k in others] for q in own])


def straight_home(worker, shares):
    """Each share goes to the owner of its keys at once: as many bytes as around the ring."""
    n, rank, total = worker.world_size, worker.rank, shares[0].clone()
    for step in range(1, n):
        came = torch.empty_like(total)
        work = dist.isend(shares[step].contiguous(), (rank - step) % n)
        dist.recv(came, (rank + step) % n)
        work.wait()
        total += came
    return total


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("merge_blocks", by_the_largest),
        ("zigzag_seen", by_loops),
        ("key_gradients", straight_home),
    ],
)
def test_other_right_answers_pass(name, answer):
    verdict = getattr(check, name)(answer)
    assert verdict, verdict


def to_everybody(worker, shares):
    """All shares go to all ranks: right, and too many bytes."""
    n, rank, total = worker.world_size, worker.rank, shares[0].clone()
    for other in range(1, n):
        every = torch.empty_like(shares)
        work = dist.isend(shares, (rank + other) % n)
        dist.recv(every, (rank - other) % n)
        work.wait()
        total += every[(n - other) % n]
    return total


@pytest.mark.usefixtures("shared_ranks")
def test_shares_that_nobody_needs_are_found():
    verdict = check.key_gradients(to_everybody)
    assert verdict.status == "wrong"
    assert "gradients are right, but rank 0 sent 192 bytes; 2 parts of 32" in verdict.finding
    assert verdict.hint == exercises.ONCE


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("case", exercises.key_gradients.asked(), ids=lambda case: case.words)
def test_each_share_reaches_the_owner_of_its_keys_once(case):
    """Rank r has the keys of an owner in step r - owner."""
    n, tokens = case.arguments[0], case.arguments[1]["tokens"]
    workers = [SimpleNamespace(rank=rank, world_size=n) for rank in range(n)]
    shares = [exercises.shares_of(one, tokens)[0] for one in workers]
    for owner, found in enumerate(exercises.key_gradients.expected(case)["the result"]):
        right = sum(shares[rank][(rank - owner) % n] for rank in range(n))
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)

"""The scan over ranks: the solution passes; each common mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week10.scan_over_ranks import HINTS, PARTS, Reference, inputs, scanned
from notebooks.solutions import week10
from tests.check.asked import drawn_anew

pytestmark = pytest.mark.usefixtures("shared_ranks")


def chain(worker, a, b, reference):
    """The mistakes of the reference, made by ranks that hand on a state."""
    own, decay = scanned(a, b), a.cumprod(0)
    handed = b.new_zeros(b.shape[1])
    if worker.rank > 0:
        dist.recv(handed, worker.rank - 1)
    if worker.rank < worker.world_size - 1:
        dist.send(reference.hand_on(own, decay, handed), worker.rank + 1)
    return own + reference.mend(a, decay) * handed


def test_the_solution_passes():
    verdict = check.scan_over_ranks(week10.scan_over_ranks)
    assert verdict, verdict


def test_the_stub_is_told_apart():
    def stub(worker, a, b):
        raise NotImplementedError

    assert check.scan_over_ranks(stub).status == "not written yet"


def test_digits_of_float32_are_too_few():
    verdict = check.scan_over_ranks(lambda *given: week10.scan_over_ranks(*given) * (1 + 1e-8))
    assert verdict.status == "wrong"


def test_the_reference_is_one_scan():
    for parts in PARTS:
        given = inputs(parts)
        whole = scanned(*(torch.cat(tensors) for tensors in zip(*given, strict=True)))
        found = torch.cat(Reference().run(given))
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mistake", HINTS)
def test_each_mistake_is_told(mistake):
    verdict = check.scan_over_ranks(lambda w, a, b: chain(w, a, b, Reference(mistake)))
    assert verdict.status == "wrong"
    assert verdict.hint == HINTS[mistake], verdict
    assert "Rank " in verdict.finding


def pairs_to_all(worker, a, b):
    """Right: every rank sends its pair to all later ranks, which combine them."""
    h, decay = scanned(a, b), a.cumprod(0)
    pair, before = torch.stack([b.new_ones(2), b.new_zeros(2)]), b.new_zeros(2)
    if len(b):
        pair = torch.stack([decay[-1], h[-1]])
    for earlier in range(worker.rank):
        came = torch.empty_like(pair)
        dist.recv(came, earlier)
        before = came[0] * before + came[1]
    for later in range(worker.rank + 1, worker.world_size):
        dist.send(pair, later)
    return h + decay * before


def one_after_the_other(worker, a, b):
    """Right, although no rank works before the rank before it is done."""
    state = b.new_zeros(b.shape[1])
    if worker.rank > 0:
        dist.recv(state, worker.rank - 1)
    h = torch.empty_like(b)
    for t in range(len(b)):
        state = a[t] * state + b[t]
        h[t] = state
    if worker.rank < worker.world_size - 1:
        dist.send(state, worker.rank + 1)
    return h


@pytest.mark.parametrize("answer", [pairs_to_all, one_after_the_other])
def test_other_right_answers_pass(answer):
    verdict = check.scan_over_ranks(answer)
    assert verdict, verdict


def whole_parts(worker, a, b):
    """Each rank sends all that it knows to the next one, and scans all of it."""
    rows = torch.stack([a, b])
    if worker.rank > 0:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, worker.rank - 1)
        came = torch.empty(2, int(size), 2, dtype=b.dtype)
        if size:
            dist.recv(came, worker.rank - 1)
        rows = torch.cat([came, rows], 1)
    if worker.rank < worker.world_size - 1:
        dist.send(torch.tensor([rows.shape[1]]), worker.rank + 1)
        if rows.shape[1]:
            dist.send(rows, worker.rank + 1)
    return scanned(*rows)[rows.shape[1] - len(b) :]


def a_state_for_each_token(worker, a, b):
    """Right, with a long message for a long part: 200 times the same state."""
    rows = b.new_zeros(len(b) if len(b) == 200 else 1, 2)
    if worker.rank > 0:
        dist.recv(rows, worker.rank - 1)
    h = scanned(a, b) + a.cumprod(0) * rows[0]
    if worker.rank < worker.world_size - 1:
        last = h[-1:] if len(b) else rows[:1]
        dist.send(last.expand_as(rows).contiguous(), worker.rank + 1)
    return h


def by_collective(worker, a, b):
    states = [torch.empty(2, dtype=b.dtype) for _ in range(worker.world_size)]
    dist.all_gather(states, b.sum(0))
    return b


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (whole_parts, "Which numbers describe this step?"),
        (a_state_for_each_token, "Which numbers describe this step?"),
        (by_collective, "Messages only"),
        (lambda worker, a, b: None, "Return the states of the rank's own part"),
        (lambda worker, a, b: scanned(a, b)[-1:], "Return the states of the rank's own part"),
        (lambda worker, a, b: b, "Rank 0 needs no other rank"),
        (lambda worker, a, b: scanned(a, b) * torch.nan, "Rank 0 needs no other rank"),
        (lambda worker, a, b: scanned(a, b) + worker.rank, "Scan the part from h = 0."),
    ],
)
def test_answers_of_another_kind(answer, hint):
    verdict = check.scan_over_ranks(answer)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_a_message_that_nobody_receives_is_told(monkeypatch):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 2.0)

    def waits_for_the_next(worker, a, b):
        if worker.rank < worker.world_size - 1:
            dist.recv(torch.empty(2, dtype=b.dtype), worker.rank + 1)
        return scanned(a, b)

    verdict = check.scan_over_ranks(waits_for_the_next)
    assert verdict.status == "wrong"
    assert verdict.hint


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: inputs((2, 1)))

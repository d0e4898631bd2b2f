"""The scan over ranks: the solution passes; each common mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.traffic import Call
from helpers.check.week10.scan_over_ranks import (
    HINTS,
    PARTS,
    Reference,
    hint,
    inputs,
    judge_bytes,
    scanned,
)
from helpers.runtime.runs import Runs
from notebooks.solutions import week10
from tests.check.alone import found_alone
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


def test_a_mistake_of_the_last_rank_in_one_case_alone_is_found():
    """In its last number: off by 2e-11 is wrong, rounding is right."""

    def off(by):
        def solve(worker, a, b):
            h = week10.scan_over_ranks(worker, a, b)
            if worker.rank == worker.world_size - 1:
                h[-1, -1] += by
            return h

        return solve

    found = found_alone(check.scan_over_ranks, off(1e-12), off(2e-11))
    assert [finding.split(", number 1: ")[0] for finding in found] == [
        "with 1 rank: 5 tokens, cut into [5]. Rank 0, token 4 of its part",
        "with 2 ranks: 7 tokens, cut into [3, 4]. Rank 1, token 3 of its part",
        "with 3 ranks: 9 tokens, cut into [2, 3, 4]. Rank 2, token 3 of its part",
        "with 4 ranks: 8 tokens, cut into [1, 4, 1, 2]. Rank 3, token 1 of its part",
        "with 3 ranks: 5 tokens, cut into [2, 0, 3]. Rank 2, token 2 of its part",
        "with 3 ranks: 600 tokens, cut into [200, 200, 200]. Rank 2, token 199 of its part",
    ]


def sent(*sizes):
    return Runs([{"calls": [Call("send", 0, size), Call("recv", 0, 999)]} for size in sizes])


def test_a_decay_and_a_state_for_every_other_rank_are_enough():
    """32 bytes for each of the two others."""
    judge_bytes(sent(0, 64, 0), [200, 200, 200])
    with pytest.raises(NotRight) as wrong:
        judge_bytes(sent(0, 0, 65), [200, 200, 7])
    assert wrong.value.finding == (
        "the states are right, but rank 2 sent 65 bytes for its 7 tokens"
    )
    judge_bytes(sent(0, 65, 0), [1, 4, 4])  # a part has 64 bytes itself
    with pytest.raises(NotRight):
        judge_bytes(sent(0, 65, 0), [1, 5, 4])
    judge_bytes(sent(32), [200])
    with pytest.raises(NotRight):
        judge_bytes(sent(33), [200])


def test_one_scan_by_hand():
    a, b = torch.tensor([[0.5], [2.0], [-1.0]]), torch.tensor([[3.0], [1.0], [4.0]])
    assert scanned(a, b).flatten().tolist() == [3.0, 7.0, -3.0]
    assert scanned(a[:0], b[:0]).shape == (0, 1)


def test_what_ranks_are_given():
    parts = inputs([2, 0, 3])
    assert [(tuple(a.shape), tuple(b.shape)) for a, b in parts] == [
        ((n, 2), (n, 2)) for n in (2, 0, 3)
    ]
    a, b = (torch.cat(tensors) for tensors in zip(*inputs([200, 200, 200]), strict=True))
    assert -0.6 <= a.min() < -0.5 < 0.9 < a.max() <= 1.0
    assert 0.5 <= b.min() < 0.6 < 1.4 < b.max() <= 1.5


def test_a_mistake_in_a_later_rank_gets_the_general_hint():
    given = inputs([3, 4])
    right = Reference().run(given)
    assert "Scan the part from h = 0" in hint([right[0], right[1] + 1], given)
    assert "Rank 0 needs no other rank" in hint([right[0] + 1, right[1]], given)


def test_another_kind_of_answer_names_the_rank():
    verdict = check.scan_over_ranks(lambda worker, a, b: b[:, :1] if worker.rank else b)
    assert "Rank 0 needs no other" in verdict.hint  # with one rank

    def in_words(worker, a, b):
        h = week10.scan_over_ranks(worker, a, b)
        return h if worker.rank == 0 else "h"

    verdict = check.scan_over_ranks(in_words)
    assert verdict.finding == "with 2 ranks: rank 1 returned 'h'"
    assert verdict.hint.endswith("a tensor (4, 2) here.")

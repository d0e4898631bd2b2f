"""Scans of a cut sequence equal those of one process, forward and backward, for any parts."""

from types import SimpleNamespace

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.messages import Peers
from helpers.models.scan.selective import selective_scan
from helpers.models.scan.ssd import ssd
from helpers.parallel.cut_sequence.scans import (
    only_first,
    selective_scan_over_ranks,
    ssd_over_ranks,
)
from helpers.plans.sequence_traffic import ring_attention_bytes, scan_bytes
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.models.scan.oracle import dual_inputs, selective_inputs

pytestmark = pytest.mark.usefixtures("kept_ranks")
SCANS = {
    "selective": (selective_inputs, selective_scan, selective_scan_over_ranks),
    "duality": (dual_inputs, ssd, ssd_over_ranks),
}
ALONG = {0, 1, 3, 4}  # x, delta, B and C have tokens; A, D and h0 have none
PARTS = [[7], [1, 6, 2], [5, 0, 1, 3], [0, 2, 2, 0]]


def on_ranks(worker, kind, parts, initial):
    make, _, over_ranks = SCANS[kind]
    start = sum(parts[: worker.rank])
    given = make(sum(parts))
    own = [
        (t[:, start : start + parts[worker.rank]] if i in ALONG else t).detach().requires_grad_()
        for i, t in enumerate(given)
    ]
    if worker.rank or not initial:
        own[6] = None
    with ledger() as forward:
        y, last = over_ranks(*own, peers=Peers())
    loss = loss_of(y, start) + last.sin().sum() * (worker.rank + 1)
    with ledger() as backward:
        gradients = torch.autograd.grad(
            loss, [t for t in own if t is not None], materialize_grads=True
        )
    sent = [log.of("send").payload for log in (forward, backward)]
    return {"y": y.detach(), "last": last.detach(), "gradients": list(gradients), "sent": sent}


def loss_of(y, start):
    """A loss in which every token of the whole sequence has its own weight."""
    places = torch.arange(start, start + y.shape[1], dtype=y.dtype).view(-1, *[1] * (y.dim() - 2))
    return (y.cos() * (1 + places)).sum()


@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("kind", SCANS)
def test_a_cut_sequence_is_scanned_as_in_one_process(kind, parts, initial):
    runs = launch(on_ranks, len(parts), device="cpu", kind=kind, parts=parts, initial=initial)
    make, scan, _ = SCANS[kind]
    inputs = make(sum(parts))
    y, _ = scan(*inputs[:6], inputs[6] if initial else None)
    loss = loss_of(y, 0)
    for rank in range(len(parts)):  # the state after each part
        end = sum(parts[: rank + 1])
        cut = [t[:, :end] if i in ALONG else t for i, t in enumerate(inputs)]
        state = scan(*cut[:6], cut[6] if initial else None)[1]
        same(runs[rank]["last"], state)
        loss = loss + state.sin().sum() * (rank + 1)
    wanted = torch.autograd.grad(loss, inputs if initial else inputs[:6])
    same(torch.cat(runs.column("y"), 1), y)
    for i, right in enumerate(wanted):
        pieces = [row["gradients"][i] for row in runs if i < len(row["gradients"])]
        same(torch.cat(pieces, 1) if i in ALONG else sum(pieces), right)


def same(found, wanted):
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", SCANS)
def test_the_bytes_are_those_of_the_formula_and_do_not_grow(kind):
    ranks, sizes = 4, {"selective": (15, 15), "duality": (4, 4 * 3 * 5)}
    decay, state = sizes[kind]
    counted = {}
    for length in (2, 9):
        runs = launch(
            on_ranks, ranks, device="cpu", kind=kind, parts=[length] * ranks, initial=False
        )
        counted[length] = runs.column("sent")
    assert counted[2] == counted[9]
    options = {"decay": decay, "state": state, "ranks": ranks, "sequences": 2, "number_bytes": 8}
    for rank, (forward, backward) in enumerate(counted[2]):
        assert forward == scan_bytes(rank=rank, **options)
        assert backward == scan_bytes(rank=ranks - 1 - rank, **options)
    attention = [
        ring_attention_bytes(length=4 * length, kept=10, ranks=4)["forward"] for length in (2, 9)
    ]
    assert attention[1] == 4.5 * attention[0]


def low_precision(worker, kind, narrow):
    make, scan, over_ranks = SCANS[kind]
    inputs = [t.detach().float() for t in make(12)[:6]]
    for place in narrow:
        inputs[place] = inputs[place].bfloat16()
    tokens = slice(6 * worker.rank, 6 * worker.rank + 6)
    own = [t[:, tokens] if i in ALONG else t for i, t in enumerate(inputs)]
    y, last = over_ranks(*own, peers=Peers())
    whole, end = scan(*inputs)
    assert (y.dtype, last.dtype, end.dtype) == (whole.dtype, torch.float32, torch.float32)
    torch.testing.assert_close(y, whole[:, tokens], rtol=2**-6, atol=0.05)  # of bfloat16
    return (last - end).abs().max().item()


@pytest.mark.parametrize("narrow", [[0], [0, 1, 2, 3, 4, 5]], ids=["x", "all"])
@pytest.mark.parametrize("kind", SCANS)
def test_low_precision_inputs_keep_a_float32_state(kind, narrow):
    """And the decays of a part, too: after 12 tokens the state is as exact as in one process."""
    assert launch(low_precision, 2, device="cpu", kind=kind, narrow=narrow)[1] < 1e-5


def late_state(worker):
    inputs = selective_inputs(3)
    return selective_scan_over_ranks(*inputs[:6], inputs[6], peers=Peers())


def test_only_the_first_rank_has_a_state_before():
    with pytest.raises(WorkerError, match=r"rank 1 has a state before the sequence"):
        launch(late_state, 2, device="cpu")


def test_a_rank_in_the_middle_has_no_state_of_its_own_either():
    state = torch.zeros(1)
    for rank in (1, 2, 3):
        peers = SimpleNamespace(rank=rank, size=4)
        with pytest.raises(ValueError, match=f"rank {rank} has a state before"):
            only_first(state, peers)
        only_first(None, peers)
    only_first(state, SimpleNamespace(rank=0, size=4))

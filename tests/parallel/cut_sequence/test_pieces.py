"""A sequence in pieces, on any number of ranks, gives the numbers of one scan."""

from types import SimpleNamespace

import pytest
import torch

from helpers.comm.messages import Peers
from helpers.models.scan.ssd import ssd
from helpers.parallel.cut_sequence import pieces
from helpers.parallel.cut_sequence.pieces import (
    like_a_pass,
    one_pass,
    random_piece,
    scan_long,
    scan_pieces,
)
from helpers.plans.sequence_traffic import scan_bytes
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")
A = -torch.arange(1.0, 3, dtype=torch.float64)
SHAPE = {"heads": 2, "width": 3, "state": 4}
SIZES = [[5], [3, 2, 4], [1], [2, 2]]  # tokens of each rank's pieces


def whole():
    pieces, number = [], 0
    for sizes in SIZES:
        pieces.append([random_piece(number := number + 1, size, **SHAPE) for size in sizes])
    return pieces


def in_pieces(worker):
    own, found = whole()[worker.rank], []
    last = scan_pieces(lambda: iter(own), A, found.append, Peers())
    return torch.cat(found, 1), last


def test_pieces_of_any_size_give_one_scan():
    runs = launch(in_pieces, 4, device="cpu")
    inputs = [torch.cat(parts, 1) for parts in zip(*(p for ps in whole() for p in ps), strict=True)]
    y, last = ssd(*inputs[:2], A, *inputs[2:])
    torch.testing.assert_close(torch.cat([y for y, _ in runs], 1), y, rtol=0, atol=1e-12)
    torch.testing.assert_close(runs[3][1], last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_the_long_sequence_is_the_same_on_any_number_of_ranks(ranks):
    sizes = {"tokens": 56, "piece": 8, **SHAPE}
    runs = launch(scan_long, ranks, device="cpu", **sizes)
    inputs = [
        torch.cat(parts, 1)
        for parts in zip(*(random_piece(k, 8, **SHAPE) for k in range(7)), strict=True)
    ]
    y, last = ssd(*inputs[:2], A, *inputs[2:])
    means = torch.cat(runs.column("means"))
    torch.testing.assert_close(means, y.unflatten(1, (7, 8)).mean((0, 2, 3, 4)), rtol=0, atol=1e-12)
    torch.testing.assert_close(runs[ranks - 1]["last"], last, rtol=0, atol=1e-12)
    pair = {"decay": 2, "state": 24, "ranks": ranks, "number_bytes": 8}
    assert runs.column("sent") == [scan_bytes(rank=r, **pair) for r in range(ranks)]
    frame = runs.frame()
    for rank in range(ranks):
        seen = frame[frame["rank"] == rank]
        passes = 1 if rank in (0, ranks - 1) else 2
        assert seen["tokens"].max() == passes * 8 * len(runs[rank]["means"])
        assert (seen["resident"] > 0).all()


def test_pieces_are_made_on_any_rank_alike_and_differ():
    first, again, other = (random_piece(k, 4)[0] for k in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, random_piece(5, 4, seed=1)[0])
    assert not torch.equal(other, random_piece(5, 4, seed=1)[0])


@pytest.mark.parametrize(("tokens", "piece"), [(10, 4), (8, 8)])
def test_pieces_that_do_not_suit(tokens, piece):
    with pytest.raises(WorkerError, match=f"{tokens} tokens are .* pieces of {piece}, for 2 ranks"):
        launch(scan_long, 2, device="cpu", tokens=tokens, piece=piece)


def threads(worker):
    """Threads of PyTorch before, during and after the scan; also if a piece fails."""
    during = []
    worker = SimpleNamespace(log=lambda **_: during.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        scan_long(worker, tokens=32, piece=8, **SHAPE)
        after = [torch.get_num_threads()]
        with pytest.raises(RuntimeError):
            scan_long(worker, tokens=32, piece=8, **SHAPE | {"width": -1})
        return after + [torch.get_num_threads()], during
    finally:
        torch.set_num_threads(before)


def test_it_scans_with_one_thread_and_gives_the_others_back():
    [(after, during)] = launch(threads, 1, device="cpu")
    assert after == [2, 2]
    assert during == [1] * 4  # one log for each piece


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("others", [torch.float32, torch.bfloat16])
def test_what_is_never_sent_has_the_shape_and_the_format_of_what_comes(kind, others):
    """Low-precision inputs have a state and decays in float32."""
    x, *rest = random_piece(0, 5, heads=3, width=2, state=4)
    piece = x.to(kind), *(other.to(others) for other in rest)
    decays = -A.new_ones(3).float()
    decay, h = one_pass(lambda: [piece] * 3, decays, None, None)
    steps = piece[1].double().sum(1)
    torch.testing.assert_close(decay[..., 0, 0].double(), (-3 * steps).exp(), rtol=1e-6, atol=0)
    assert decay.dtype == h.dtype
    for found, come, number in zip(
        like_a_pass(piece, decays), one_pass(lambda: [piece], decays, None, None), (1, 0),
        strict=True,
    ):  # fmt: skip
        assert (found.shape, found.dtype) == (come.shape, come.dtype)
        assert (found == number).all()


class One:
    rank, size = 0, 1


def test_one_rank_logs_ten_times_or_a_little_more_and_uses_its_seed(monkeypatch):
    monkeypatch.setattr(pieces, "Peers", One)
    rows = []
    worker = SimpleNamespace(log=lambda **row: rows.append(row))
    found = scan_long(worker, tokens=50, piece=2, **SHAPE, seed=3)
    assert [row["tokens"] for row in rows] == list(range(4, 49, 4))  # every second piece
    assert all(row["resident"] > 10**6 for row in rows)
    made = [random_piece(k, 2, **SHAPE, seed=3) for k in range(25)]
    x, delta, B, C = (torch.cat(parts, 1) for parts in zip(*made, strict=True))
    y, last = ssd(x, delta, A, B, C)
    torch.testing.assert_close(found["last"], last, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        found["means"], y.unflatten(1, (25, 2)).mean((0, 2, 3, 4)), rtol=0, atol=1e-12
    )
    assert found["means"].dtype == torch.float64
    assert found["sent"] == 0
    rows.clear()
    scan_long(worker, tokens=6, piece=2, **SHAPE)
    assert [row["tokens"] for row in rows] == [2, 4, 6]


def test_a_scan_in_pieces_keeps_no_graph():
    decays, seen = A.clone().requires_grad_(), []
    last = scan_pieces(lambda: [random_piece(0, 4, **SHAPE)], decays, seen.append, One)
    assert not last.requires_grad
    assert not seen[0].requires_grad

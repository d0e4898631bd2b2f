"""A sequence in pieces, on any number of ranks, gives the numbers of one scan."""

from types import SimpleNamespace

import pytest
import torch

from helpers.comm.messages import Peers
from helpers.models.scan.ssd import ssd
from helpers.parallel.cut_sequence.pieces import random_piece, scan_long, scan_pieces
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

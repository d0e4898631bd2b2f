"""Rows of a checkpoint: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from helpers.check.week07.reshard import bounds, numbers
from notebooks.solutions import week07
from tests.check.asked import drawn_anew

pytestmark = pytest.mark.usefixtures("shared_ranks")


def test_the_solution_passes():
    verdict = check.reshard_rows(week07.reshard_rows)
    assert verdict, verdict


def between(start, stop, rows, saved, read, order=iter, local=True):
    """Rows start:stop; the solution, with a part of it changed."""
    pieces = [read(0, 0, 0)]
    for rank in order(range(saved)):
        first, last = bounds(rows, rank, saved)
        low, high = max(start, first), min(stop, last)
        if low < high:
            pieces.append(read(rank, low - first * local, high - first * local))
    return torch.cat(pieces)


def whole(worker, rows, saved, read):
    return between(0, rows, rows, saved, read)


def reads_all(worker, rows, saved, read):
    start, stop = bounds(rows, worker.rank, worker.world_size)
    return between(0, rows, rows, saved, read)[start:stop]


def reads_whole_files(worker, rows, saved, read):
    """Of the files that have rows of this rank."""
    start, stop = bounds(rows, worker.rank, worker.world_size)
    pieces = [read(0, 0, 0)]
    for rank in range(saved):
        first, last = bounds(rows, rank, saved)
        low, high = max(start, first), min(stop, last)
        if low < high:
            pieces.append(read(rank, 0, last - first)[low - first : high - first])
    return torch.cat(pieces)


def spread(worker, rows, saved, read):
    small, rest = divmod(rows, worker.world_size)
    first = worker.rank * small + min(worker.rank, rest)
    return between(first, first + small + (worker.rank < rest), rows, saved, read)


def own_file(worker, rows, saved, read):
    start, stop = bounds(rows, worker.rank % saved, saved)
    return read(worker.rank % saved, 0, stop - start)


def global_rows(worker, rows, saved, read):
    own = bounds(rows, worker.rank, worker.world_size)
    return between(*own, rows, saved, read, local=False)


def first_file_only(worker, rows, saved, read):
    start, stop = bounds(rows, worker.rank, worker.world_size)
    for rank in range(saved):
        first, last = bounds(rows, rank, saved)
        if first <= start < last:
            return read(rank, start - first, min(stop, last) - first)
    return read(0, 0, 0)


def backwards(worker, rows, saved, read):
    own = bounds(rows, worker.rank, worker.world_size)
    return between(*own, rows, saved, read, order=reversed)


def no_columns(worker, rows, saved, read):
    found = week07.reshard_rows(worker, rows, saved, read)
    return found if len(found) else torch.empty(0)


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (whole, "That is the whole tensor"),
        (reads_all, "read more than your own rows"),
        (reads_whole_files, "read more than your own rows"),
        (spread, "pieces of ceil"),
        (own_file, "when the checkpoint was saved"),
        (global_rows, "counts from the first row of that file"),
        (first_file_only, "more than one file"),
        (backwards, "in another order"),
        (no_columns, "A rank without rows"),
        (lambda *_: [1, 2], "Return a tensor"),
        (lambda *_: torch.ones(5, 3), "For each file"),
    ],
)
def test_each_mistake_gets_its_hint(mistake, hint):
    verdict = check.reshard_rows(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_a_stub():
    def stub(worker, rows, saved_ranks, read):
        raise NotImplementedError

    assert check.reshard_rows(stub).status == "not written yet"


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: numbers(1))

"""Rows of a checkpoint: the solution passes; each common mistake gets its own hint."""

from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import NotRight
from helpers.check.week07.reshard import bounds, hint_rows, judge_reshard, numbers, run_reshard
from notebooks.solutions import week07
from tests.check.alone import found_alone
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


def test_a_mistake_of_the_last_rank_in_one_case_alone_is_found():
    def one_more(worker, rows, saved, read):
        found = week07.reshard_rows(worker, rows, saved, read)
        if worker.rank == worker.world_size - 1:
            return found + 1 if len(found) else found[:, :2]
        return found

    assert found_alone(check.reshard_rows, week07.reshard_rows, one_more) == [
        "with 4 ranks: 10 rows, saved on 2 ranks, loaded on 4: rank 3 has rows 9:10; "
        "you returned shape (1, 3), and read read(0, 0, 0), read(1, 4, 5)",
        "with 4 ranks: 9 rows, saved on 2 ranks, loaded on 4: rank 3 has rows 9:9; "
        "you returned shape (0, 2), and read read(0, 0, 0)",
        "with 2 ranks: 8 rows, saved on 5 ranks, loaded on 2: rank 1 has rows 4:8; "
        "you returned shape (4, 3), and read read(0, 0, 0), read(2, 0, 2), read(3, 0, 2)",
    ]


def test_the_rows_of_a_rank():
    assert [bounds(10, rank, 4) for rank in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert [bounds(8, rank, 5) for rank in range(5)] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 8)]
    assert [bounds(2, rank, 3) for rank in range(3)] == [(0, 1), (1, 2), (2, 2)]
    assert numbers(0) == [1, 2, 3]
    assert numbers(4) == [13, 14, 15]


def run(start, stop, *reads, shape=None):
    rows = [numbers(row) for row in range(start, stop)]
    return {
        "kind": "Tensor",
        "shape": shape or (stop - start, 3),
        "dtype": "torch.float32",
        "rows": rows,
        "reads": list(reads),
    }


def refused(last, saved=2):
    """The judge's words on 10 rows of three ranks (4, 4 and 2), where the last one is as given."""
    with pytest.raises(NotRight) as wrong:
        judge_reshard([run(0, 4, (0, 0, 4)), run(4, 8, (0, 4, 5), (1, 0, 3)), last], saved, 10)
    return wrong.value


def test_as_many_rows_as_a_rank_has_may_be_read():
    right = [run(0, 4, (0, 0, 4)), run(4, 8, (0, 4, 5), (1, 0, 3))]
    judge_reshard([*right, run(8, 10, (1, 3, 5))], 2, 10)
    judge_reshard([*right, run(8, 10, (0, 0, 0), (1, 3, 4), (1, 4, 5))], 2, 10)
    wrong = refused(run(8, 10, (1, 2, 5)))
    assert wrong.finding == (
        "10 rows, saved on 2 ranks, loaded on 3: rank 2 has rows 8:10; you returned shape (2, 3), "
        "and read read(1, 2, 5)"
    )
    assert "you read more than your own rows" in wrong.hint


def test_what_is_no_tensor_and_what_no_file_has():
    wrong = refused({"kind": "list", "shape": None, "rows": None, "reads": []})
    assert wrong.finding.endswith("rank 2 returned list")
    wrong = refused({"refused": "read(1, 3, 6): …", "reads": [(1, 3, 6)]})
    assert wrong.finding.endswith("rank 2 called read(1, 3, 6): …")
    assert "counts from the first row" in wrong.hint


@pytest.mark.parametrize(
    ("last", "hint"),
    [
        (run(0, 10), "whole tensor"),
        (run(7, 10), "pieces of ceil"),
        (run(8, 9), "lie in more than one file"),
        (run(5, 9), "For each file"),
        (run(8, 10, shape=(2, 3, 1)), "in another order"),
    ],
)
def test_the_hint_for_rows_of_the_last_of_three_ranks(last, hint):
    assert hint in refused(last).hint


def test_the_hint_for_the_rows_of_other_ranks():
    """Two ranks load 8 rows that five saved; rank 1 had 2:4, and has 4:8."""
    assert "when the checkpoint was saved" in hint_rows(run(2, 4), 1, 2, 5, 8)
    assert "lie in more than one file" in hint_rows(run(6, 8), 1, 2, 5, 8)
    assert "no rows, with all columns" in hint_rows(run(0, 0), 3, 4, 2, 9)
    assert "pieces of ceil" in hint_rows(run(7, 9), 3, 4, 2, 9)
    assert "lie in more than one file" in hint_rows(run(9, 9), 3, 4, 2, 10)  # it had none before


@pytest.mark.parametrize("given", [(2, 0, 1), (-1, 0, 1), (1, -1, 2), (1, 3, 2), (1, 0, 6)])
def test_a_file_has_no_other_rows(given):
    def solve(worker, rows, saved, read):
        assert torch.equal(read(1, 0, 5)[:, 0], torch.arange(5) * 3.0 + 16)
        assert read(1, 5, 5).shape == (0, 3)
        return read(*given)

    verdict = check.reshard_rows(solve)
    assert verdict.finding.startswith(
        "with 4 ranks: 10 rows, saved on 2 ranks, loaded on 4: rank 0 called "
        f"read{given}: the file of rank {given[0]} has rows 0 to "
    )


def test_another_index_error_is_the_student_s():
    verdict = check.reshard_rows(lambda worker, rows, saved, read: [][rows])
    assert "IndexError: list index out of range" in verdict.finding
    assert "reshard" not in verdict.hint


def test_numbers_of_another_dtype_are_told():
    wrong = refused(run(8, 10, (1, 3, 5)) | {"dtype": "torch.bfloat16"})
    assert wrong.finding == (
        "10 rows, saved on 2 ranks, loaded on 3: rank 2 has rows 8:10; you returned shape (2, 3), "
        "and read read(1, 3, 5); their dtype is torch.bfloat16"
    )
    assert "Which dtype has what `read` returns?" in wrong.hint


THIRD = SimpleNamespace(rank=2, world_size=4)


def test_what_a_rank_reports():
    """What was read is the student's: a second read gives the saved rows again."""

    def solve(worker, rows, saved, read):
        assert (worker, rows, saved) == (THIRD, 8, 5)
        first = read(3, 1, 2)
        assert first.untyped_storage().nbytes() == 12
        first.zero_()
        return torch.cat([read(3, 1, 2), read(4, 0, 0)]).double()

    assert run_reshard(THIRD, solve, 5, 8) == {
        "kind": "Tensor",
        "shape": (1, 3),
        "dtype": "torch.float64",
        "rows": [[22.0, 23.0, 24.0]],
        "reads": [(3, 1, 2), (3, 1, 2), (4, 0, 0)],
    }


def test_what_else_a_rank_reports():
    nothing = run_reshard(THIRD, lambda *_: [1.0], 5, 8)
    assert nothing == {"kind": "list", "shape": None, "dtype": None, "rows": None, "reads": []}

    def too_far(worker, rows, saved, read):
        read(0, 0, 2)
        return read(3, 1, 3)

    assert run_reshard(THIRD, too_far, 5, 8) == {
        "refused": "read(3, 1, 3): the file of rank 3 has rows 0 to 2",
        "reads": [(0, 0, 2), (3, 1, 3)],
    }


class Timed(elsewhere.Here):
    def launch(self, run, workers, fn, kwargs, timeout):
        self.timeout = timeout
        raise NotImplementedError


def test_a_rank_may_be_silent_for_a_minute():
    """On a busy machine, its imports take that long."""
    place = Timed()
    with elsewhere.at(place):
        assert check.reshard_rows(week07.reshard_rows).status == "not written yet"
    assert place.timeout == 60.0

"""A flat, sharded buffer: what a rank reports and what the judge refuses, without other ranks."""

from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import NotRight
from helpers.check.traffic import Call
from helpers.check.week06 import flat
from helpers.check.week06.flat import judge_flat, numbers, row
from helpers.runtime.runs import Runs

SHAPES = [(2, 2), (), (2,)]  # 7 numbers: on three ranks 3, 3 and one with two of padding
NUMBERS = [[[1.0, 2.0], [3.0, 4.0]], 5.0, [6.0, 7.0]]
MINUS = [[[-1.0, -2.0], [-3.0, -4.0]], -5.0, [-6.0, -7.0]]
SHARDS = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 0.0, 0.0]]


def report(rank, **changes):
    right = {
        "kind": "", "changed": False, "shape": (3,), "dtype": "torch.float64",
        "shard": SHARDS[rank], "storage": 24, "shared": False, "held": 0, "first": NUMBERS,
        "second": MINUS, "calls": ["all_gather"],
    }  # fmt: skip
    return right | changes


def refused(shapes=SHAPES, **changes):
    """The judge's words where the last of three ranks reports something else."""
    with pytest.raises(NotRight) as wrong:
        judge_flat([report(0), report(1), report(2, **changes)], shapes)
    return wrong.value


def test_the_numbers_and_their_rows():
    assert [t.tolist() for t in numbers(SHAPES)] == NUMBERS
    assert {t.dtype for t in numbers(SHAPES)} == {torch.float64}
    assert row(SHAPES, 3) == SHARDS
    assert row(SHAPES, 1) == [[1, 2, 3, 4, 5, 6, 7]]
    assert row([(2,)], 3) == [[1], [2], [0]]
    assert row([(3, 2)], 2) == [[1, 2, 3], [4, 5, 6]]


def test_what_is_right_passes():
    judge_flat([report(rank) for rank in range(3)], SHAPES)
    judge_flat([report(rank, held=-8) for rank in range(3)], SHAPES)
    alone = {"shape": (7,), "storage": 56, "calls": ["all_reduce"]}
    judge_flat([report(0, shard=[float(n) for n in range(1, 8)], **alone)], SHAPES)


@pytest.mark.parametrize(
    ("changes", "finding", "hint"),
    [
        ({"kind": "NoneType"}, "rank 2 returned NoneType", "Return two things"),
        ({"changed": True}, "rank 2's tensors have changed", "belong to the caller"),
        ({"shape": (1, 3)}, "", "A shard is flat"),
        ({"shared": True}, "rank 2's shard shares the memory of a tensor", "copies a slice"),
        (
            {"storage": 25},
            "rank 2's shard has 24 bytes and keeps 25 bytes alive",
            "it keeps the whole buffer",
        ),
        (
            {"held": 1},
            "after the call rank 2 still holds 1 bytes besides its shard",
            "Shapes are enough",
        ),
        (
            {"first": NUMBERS[:2]},
            f"shapes {SHAPES}: rank 2 gathered {NUMBERS[:2]}",
            "There were 3 tensors, and gather returned 2.",
        ),
        ({"first": "Tensor"}, f"shapes {SHAPES}: rank 2 gathered Tensor", "a list with one tensor"),
        (
            {"first": [*NUMBERS[:2], [6.0, 0.0]]},
            f"shapes {SHAPES}: rank 2 gathered {[*NUMBERS[:2], [6.0, 0.0]]}",
            "Where does each begin?",
        ),
        (
            {"first": [*NUMBERS[:2], "a tensor of torch.float32"]},
            f"shapes {SHAPES}: rank 2 gathered {[*NUMBERS[:2], 'a tensor of torch.float32']}",
            "of the dtype that the tensors had",
        ),
        (
            {"second": NUMBERS},
            f"the shards were multiplied by -1; then rank 2 gathered {NUMBERS}",
            "changes it between two calls",
        ),
        (
            {"calls": ["all_gather", "all_reduce"]},
            "right, but rank 2 used an all-reduce",
            "Which collective puts shards in a row?",
        ),
    ],
)
def test_a_mistake_of_the_last_rank(changes, finding, hint):
    wrong = refused(**changes)
    assert wrong.finding == finding or not finding
    assert hint in wrong.hint


def test_the_dtype_is_told():
    wrong = refused(dtype="torch.float32")
    assert wrong.finding == "the tensors are torch.float64, rank 2's shard is torch.float32"
    assert "torch.zeros(n)" in wrong.hint


def test_all_shards_are_shown():
    wrong = refused(shard=[7.0, 0.0, 9.5])
    assert wrong.finding == (
        f"shapes {SHAPES}, 7 numbers\n"
        "  rank 0: shard of shape (3,): [1, 2, 3]\n"
        "  rank 1: shard of shape (3,): [4, 5, 6]\n"
        "  rank 2: shard of shape (3,): [7, 0, 9.5]"
    )
    assert "The padding is not zero" in wrong.hint


EVERY = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("shards", "hint"),
    [
        ([EVERY] * 3, "Every rank has all numbers"),
        ([SHARDS[0], SHARDS[1], [7.0]], "have different lengths"),
        ([SHARDS[0], SHARDS[0], SHARDS[0]], "Every rank has the same shard"),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "The last numbers are on no rank"),
        ([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 0.0], [0.0] * 4], "A shard of 3 numbers is enough"),
        ([*SHARDS[:2], [7.0, 0.0, 1.0]], "The padding is not zero"),
        ([SHARDS[2], SHARDS[1], SHARDS[0]], "in another order"),
        ([[1.0, 4.0, 7.0], [2.0, 5.0, 0.0], [3.0, 6.0, 0.0]], "in another order"),
        ([*SHARDS[:2], [8.0, 0.0, 0.0]], "cut it into N equal parts"),
        ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 0.0, 0.0]], "cut it into N equal parts"),
    ],
)
def test_the_hint_for_shards_of_7_numbers_on_3_ranks(shards, hint):
    assert hint in flat.hint_shards(shards, 7, 3, 3)


def test_the_hint_for_one_rank_and_for_equal_parts():
    assert "cut it into N" in flat.hint_shards([[1.0, 2.0, 9.0]], 3, 1, 3)
    assert "in another order" in flat.hint_shards([[2.0, 1.0]], 2, 1, 2)
    assert "The last numbers" in flat.hint_shards([[1.0], [2.0]], 3, 2, 2)


def test_the_hint_while_grading_whose_numbers_begin_elsewhere(monkeypatch):
    monkeypatch.setattr(flat.hidden, "shift", lambda most: most)
    assert row([(3,)], 2) == [[100, 101], [102, 0]]
    assert numbers([(1,), (2,)])[1].tolist() == [101, 102]
    assert "The padding is not zero" in flat.hint_shards([[100.0, 101.0], [102.0, 5.0]], 3, 2, 2)
    assert "in another order" in flat.hint_shards([[102.0, 0.0], [100.0, 101.0]], 3, 2, 2)


@pytest.fixture
def alone(monkeypatch):
    """One rank of one, in this process."""

    class Told:
        def __enter__(self):
            self.calls = [Call("all_gather", None, 8), Call("all_reduce", None, 4)]
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(flat.dist, "all_reduce", lambda right, operation: None)
    monkeypatch.setattr(flat, "Traffic", Told)
    return SimpleNamespace(world_size=1, rank=0)


def into(shard, dtype=torch.float64):
    parts = shard.to(dtype).split([4, 1, 2])
    return [part.view(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def solved(worker, tensors):
    return torch.cat([t.flatten() for t in tensors]), into


def test_what_a_rank_reports(alone):
    assert flat.run_flat(alone, solved, SHAPES) == {
        "kind": "",
        "changed": False,
        "shape": (7,),
        "dtype": "torch.float64",
        "shard": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        "storage": 56,
        "shared": False,
        "held": 0,
        "first": NUMBERS,
        "second": MINUS,
        "calls": ["all_gather", "all_reduce"],
    }


def test_what_a_rank_changes_holds_and_shares(alone):
    def in_place(worker, tensors):
        answer = solved(worker, tensors)
        tensors[-1][1] = 8
        return answer

    assert flat.run_flat(alone, in_place, SHAPES)["changed"]

    def holds(worker, tensors):
        shard, gather = solved(worker, tensors)
        more = torch.zeros(5)
        return shard, lambda shard: gather(shard) if len(more) else None

    assert flat.run_flat(alone, holds, SHAPES)["held"] == 20

    def of_the_last(worker, tensors):
        return tensors[-1], lambda shard: [shard]

    found = flat.run_flat(alone, of_the_last, [(3,), (0,), (2,)])
    assert found["shared"]
    assert (found["shard"], "first" in found) == ([4, 5], False)
    shard = torch.arange(1.0, 8.0, dtype=torch.float64)
    found = flat.run_flat(alone, lambda *_: (torch.cat([shard, shard])[:7], into), SHAPES)
    assert (found["storage"], found["shared"]) == (112, False)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (7, "int"),
        ((torch.ones(1), 2), "tuple of Tensor, int"),
        ([3, len], "list of int, builtin_function_or_method"),
        ((torch.ones(1), len, 3), "tuple of Tensor, builtin_function_or_method, int"),
        ([], "list of "),
    ],
)
def test_what_is_no_pair(alone, answer, kind):
    assert flat.run_flat(alone, lambda *_: answer, SHAPES) == {"kind": kind}


def test_nothing_is_gathered_where_another_rank_has_a_wrong_shard(alone, monkeypatch):
    def lowest(right, operation):
        assert right.item() is True
        assert operation == flat.dist.ReduceOp.MIN
        right.fill_(False)

    monkeypatch.setattr(flat.dist, "all_reduce", lowest)
    assert "first" not in flat.run_flat(alone, solved, SHAPES)


def test_what_was_gathered_in_words():
    assert flat.lists(None) == "NoneType"
    gathered = (torch.ones(2).double(), 3, None, torch.ones(2))
    assert flat.lists(gathered) == [[1.0, 1.0], "int", "NoneType", "a tensor of torch.float32"]


def test_memory_is_shared_by_its_address():
    whole = torch.arange(6.0)
    assert flat.shares(whole[:2], whole[4:])
    assert not flat.shares(whole, whole.clone())
    assert not flat.shares(torch.empty(0), torch.empty(0))


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("split_with_sizes expects split_sizes to sum exactly", "Which part of it"),
        ("shape '[2, 2]' is invalid for input of size 3", "each tensor its own shape"),
        ("invalid for input of size 3", "each tensor its own shape"),
        ("output tensor size must be equal to world_size times", "shards of one size"),
        ("rank 1 was ended by SIGABRT", "Is the last one shorter?"),
    ],
)
def test_the_hint_for_a_failure(finding, hint):
    assert hint in flat.hint_failure(finding)
    assert flat.hint_failure("KeyError") == ""


class Asked(elsewhere.Here):
    """Ranks that are right, but for the last one of the case with this number."""

    def __init__(self, wrong=None):
        self.wrong, self.asked = wrong, []

    def launch(self, run, workers, fn, kwargs, timeout):
        assert timeout == 40.0  # a busy machine needs more than 10 s for a rank's imports
        self.asked.append((workers, kwargs["shapes"]))
        shapes, rows = kwargs["shapes"], row(kwargs["shapes"], workers)
        first, size = [t.tolist() for t in numbers(shapes)], len(rows[0])
        found = [
            report(0, shard=one, shape=(size,), storage=8 * size, first=first)
            | {"second": [(-t).tolist() for t in numbers(shapes)]}
            for one in rows
        ]
        if len(self.asked) == self.wrong:
            found[-1]["second"] = first
        return Runs(found)


def test_each_case_is_asked_for():
    with elsewhere.at(Asked()):
        assert check.shard_flat(None)
    for number, ranks in enumerate((2, 4, 3, 2, 1), start=1):
        place = Asked(number)
        with elsewhere.at(place):
            finding = check.shard_flat(None).finding
        assert f"multiplied by -1; then rank {ranks - 1} gathered" in finding
    assert place.asked == [
        (2, [(2, 3), (4,)]),
        (4, [(3, 2), (), (4,)]),
        (3, [(2,)]),
        (2, [(3, 3)]),
        (1, [(2, 2), (1,)]),
    ]

"""Shards and first states: the judges alone, and one rank's part with a double of its worker."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import NotRight
from helpers.check.week03 import replicas
from helpers.runtime.runs import Runs


def worker(rank, world_size=3):
    return SimpleNamespace(rank=rank, world_size=world_size)


class Asked:
    """A place that runs nothing, and keeps what it was asked to run."""

    def __init__(self, results):
        self.results, self.asked = results, []

    def launch(self, run, workers, fn, kwargs, timeout):
        self.asked.append((workers, kwargs))
        return Runs(self.results(workers, **kwargs))


def told(finding, hint, function, *arguments):
    with pytest.raises(NotRight) as error:
        function(*arguments)
    assert error.value.finding == finding
    assert hint in error.value.hint, error.value.hint


# ------------------------------------------------------------------------------ shards


def shards(*held, width=3):
    return Runs(
        [{"kind": "a tensor", "shape": (len(rows), width), "rows": list(rows)} for rows in held]
    )


def test_the_shards_that_are_asked_for():
    place = Asked(
        lambda ranks, rows: shards(*(p.tolist() for p in torch.arange(rows).tensor_split(ranks)))
    )
    with elsewhere.at(place):
        verdict = check.shard(None)
    assert verdict
    assert verdict.exercise == "shard"
    wanted = [(2, 4), (3, 8), (3, 3), (2, 1), (4, 6), (4, 3)]
    assert place.asked == [(ranks, {"rows": rows}) for ranks, rows in wanted]


def test_what_a_rank_reports_of_its_shard():
    batch = torch.tensor([[0, 1, 2], [10, 11, 12], [20, 21, 22], [30, 31, 32]])
    assert torch.equal(replicas.global_batch(4), batch)

    def report(answer):
        def solve(given, rows):
            assert given.rank == 1
            assert torch.equal(rows, batch)
            return answer(rows)

        return replicas.run_shard(worker(1), solve, 4)

    assert report(lambda rows: rows[[3, 1]]) == {
        "kind": "a tensor",
        "shape": (2, 3),
        "rows": [3, 1],
    }
    assert report(lambda rows: rows[:0])["rows"] == []
    assert report(lambda rows: rows[1:3] + torch.tensor([[0], [1]]))["rows"] == [1, None]
    assert report(lambda rows: rows.mul_(2))["rows"] == [None] * 4
    assert report(lambda rows: rows[1]) == {"kind": "a tensor", "shape": (3,), "rows": []}
    assert report(lambda rows: rows.T) == {"kind": "a tensor", "shape": (3, 4), "rows": []}
    assert report(lambda rows: rows.tolist()) == {"kind": "list", "shape": None, "rows": []}


def test_shards_that_are_right():
    replicas.judge_shard(shards([0, 1, 2], [3, 4, 5], [6, 7]), 8)
    replicas.judge_shard(shards([], [0], [1]), 2)


def changed(**last):
    runs = shards([0], [1], [2])
    runs[2].update(last)
    return runs


@pytest.mark.parametrize(
    ("runs", "rows", "finding", "hint"),
    [
        (changed(shape=None, kind="list", rows=[]), 3, "3 rows: rank 2 returned list",
         "Return a tensor (b, T) on every rank"),
        (changed(shape=(3,), rows=[]), 3, "a batch of shape (3, 3): rank 2 returned (3,)",
         "Which dim of the batch"),
        (changed(shape=(1, 2), rows=[]), 3, "a batch of shape (3, 3): rank 2 returned (1, 2)",
         "Which dim of the batch"),
        (changed(rows=[2, None]), 3, "3 rows: rank 2 returned rows that are not in the batch",
         "Which line changed them"),
        (shards([0], [1], [2, 3, 4]), 5,
         "5 rows\n  rank 0: row 0\n  rank 1: row 1\n  rank 2: rows 2, 3, 4", "the slowest rank"),
        (shards([0, 1], [2, 3], []), 4, "4 rows\n  rank 0: rows 0, 1\n  rank 1: rows 2, 3\n"
         "  rank 2: no rows", "the slowest rank"),
        (shards([0, 2], [1]), 3, "3 rows\n  rank 0: rows 0, 2\n  rank 1: row 1",
         "not in the batch's order"),
    ],
)  # fmt: skip
def test_the_first_wrong_shard_is_told(runs, rows, finding, hint):
    told(finding, hint, replicas.judge_shard, runs, rows)


@pytest.mark.parametrize(
    ("held", "rows", "hint"),
    [
        ([[0, 1, 2]] * 3, 3, "Every rank holds the whole batch: N"),
        ([[0, 2, 1]] * 3, 3, "Every rank holds the same rows."),
        ([[0, 1], [0, 1], [2]], 4, "Row 3 on no rank, and rows 0, 1 on more than one: the"),
        ([[0], [1], [2]], 4, "Row 3 is on no rank. How many rows are left over when 4 rows are "
         "split over 3 ranks?"),
        ([[0], [1], [3]], 5, "Rows 2, 4 are on no rank. How many"),
        ([[0, 1], [2, 3], [4, 0]], 5, "Row 0 would count more than once"),
        ([[0, 1], [2, 3], [1, 0]], 4, "Rows 0, 1 would count more than once"),
        ([[2], [1], [0]], 3, "Each row is on one rank, but the ranks' rows"),
    ],
)  # fmt: skip
def test_hints_for_shards(held, rows, hint):
    assert replicas.hint_shard(held, rows, 3).startswith(hint)


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("IndexError: list index out of range", "Does the split return as many parts as ranks"),
        ("split_with_sizes expects split_sizes", "The number of rows may not be a multiple"),
        ("RuntimeError: stack expects each tensor", "The number of rows may not be a multiple"),
        ("shape '[2, 4]' is invalid", "The number of rows may not be a multiple"),
        ("KeyError: 'shape'", ""),
    ],
)
def test_hints_for_errors_of_shard(finding, hint):
    found = replicas.hint_shard_error(finding)
    assert found.startswith(hint)
    assert bool(found) == bool(hint)


# ------------------------------------------------------------------------------ states

NAMES = ["layer.weight", "layer.bias", "frozen.weight", "running_mean", "steps", "table"]
PARAMETERS = NAMES[:3]


def row(name, model=0, kept=None):
    return {
        "kind": "parameter" if name in PARAMETERS else "buffer",
        "frozen": name == "frozen.weight",
        "kept": model if kept is None else kept,
        "model": model,
        "same": True,
    }


def states(ranks=3, at=2, kept=None, **models):
    """Reports of ranks with rank 0's numbers; on rank `at` these tensors have others."""
    runs = [{name: row(name) for name in NAMES} for _ in range(ranks)]
    for name, model in models.items():
        name = name.replace("_weight", ".weight").replace("_bias", ".bias")
        assert name in NAMES
        runs[at][name] = row(name, model, kept)
    return runs


def all_of(model, names=NAMES):
    return {name.replace(".", "_"): model for name in names}


def test_the_ranks_that_are_asked_for():
    place = Asked(states)
    with elsewhere.at(place):
        verdict = check.broadcast_state(None)
    assert verdict
    assert verdict.exercise == "broadcast_state"
    assert place.asked == [(2, {}), (3, {})]


def test_the_model_has_each_kind_of_tensor():
    model = replicas.State()
    tensors = replicas.tensors_of(model)
    assert list(tensors) == NAMES
    assert [p for p, t in tensors.items() if t.requires_grad] == NAMES[:2]
    assert tensors["steps"].dtype == torch.int64
    assert tensors["running_mean"].dtype == torch.float64
    assert set(NAMES) - set(model.state_dict()) == {"table"}


def test_every_number_is_on_one_rank_only():
    model = replicas.State()
    found = [replicas.first_numbers(model, rank) for rank in range(3)]
    assert found[0]["layer.weight"].tolist()[0] == [100, 101, 102]
    assert found[2]["layer.bias"].tolist() == [910, 911, 912, 913]
    assert found[1]["steps"].item() == 2**24 + 1 + 440
    assert found[1]["steps"].float().long() != found[1]["steps"]
    for name, tensor in replicas.tensors_of(model).items():
        mine = [numbers[name] for numbers in found]
        assert all((m.shape, m.dtype) == (tensor.shape, tensor.dtype) for m in mine)
        assert len({n for m in mine for n in m.flatten().tolist()}) == 3 * tensor.numel()
        for total, word in ((3, "mean"), (1, "sum")):
            now = (sum(m.double() for m in mine) / total).flatten()
            assert replicas.whose(now, found, name) == word


def rank_1(solve):
    return replicas.run_state(worker(1), solve)


def from_rank(source, model, names=NAMES):
    numbers = replicas.first_numbers(model, source)
    for name in names:
        replicas.tensors_of(model)[name].detach().copy_(numbers[name])


def test_what_a_rank_reports_of_its_state():
    found = rank_1(lambda given, model: from_rank(0, model))
    assert found == {name: row(name) for name in NAMES}
    found = rank_1(lambda given, model: None)
    assert found == {name: row(name, 1) for name in NAMES}
    found = rank_1(lambda given, model: from_rank(2, model, ["table"]))
    assert [found[name]["model"] for name in NAMES] == [1, 1, 1, 1, 1, 2]


def test_a_tensor_that_was_replaced_or_removed():
    def replace(given, model):
        from_rank(0, model)
        kept = model.layer.bias.detach().clone()
        from_rank(2, model, ["layer.bias"])
        model.layer.bias = torch.nn.Parameter(kept)
        del model.table

    found = rank_1(replace)
    assert found["layer.bias"] == {**row("layer.bias", 0, 2), "same": False}
    assert found["table"] == {**row("table", "gone", 0), "same": False}
    assert found["layer.weight"]["same"]


START = [{"x": torch.tensor([n, n + 1.0])} for n in (4.0, 5000.0, 100.0)]


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ([4.0, 5.0], 0),
        ([100.0, 101.0], 2),
        ([5104.0, 5107.0], "sum"),
        ([5104.0 / 3, 5107.0 / 3], "mean"),
        ([4.0, 5.000004], "rounded"),
        ([4.0, 5.00001], "other"),
        ([5000.0, 5001.004], "other"),  # rank 1's, rounded
        ([4.0], "other"),
        ([4.0, 5.0, 6.0], "other"),
    ],
)
def test_whose_numbers_these_are(now, found):
    assert replicas.whose(torch.tensor(now), START, "x") == found
    assert replicas.whose(torch.tensor(now).double(), START, "x") == found


def test_states_that_are_right():
    replicas.judge_state(states())


def listing(**words):
    kinds = ["parameter", "parameter", "frozen parameter", "buffer", "buffer", "buffer"]
    named = {name: words.get(name.split(".")[-1], "rank 0's numbers") for name in NAMES}
    return "\n".join(f"  {n} ({k}): {named[n]}" for n, k in zip(NAMES, kinds, strict=True))


@pytest.mark.parametrize(
    ("runs", "rank", "words"),
    [
        (states(table=2), 2, {"table": "rank 2's numbers"}),
        (states(steps="rounded"), 2, {"steps": "nearly rank 0's numbers"}),
        (states(at=1, steps="other"), 1, {"steps": "something else"}),
        (states(table="gone"), 2, {"table": "no tensor of that name"}),
        (states(layer_bias=0, kept=2), 2, {"bias": "rank 0's numbers, but in another tensor"}),
        (states(table=0, kept=2), 2, {"table": "rank 0's numbers, but in another tensor"}),
        (states(at=0, table="sum"), 0, {"table": "the sum over the ranks"}),
        (states(at=0, table="mean"), 0, {"table": "the mean over the ranks"}),
        (states(at=0, table=0, kept="other"), 0,
         {"table": "rank 0's numbers, but in another tensor"}),
    ],
)  # fmt: skip
def test_the_first_wrong_rank_is_shown(runs, rank, words):
    with pytest.raises(NotRight) as error:
        replicas.judge_state(runs)
    assert error.value.finding == (f"afterwards the model of rank {rank} holds\n{listing(**words)}")
    assert error.value.hint == replicas.hint_state(runs, rank)


@pytest.mark.parametrize(
    ("runs", "rank", "hint"),
    [
        (states(at=0, steps="rounded"), 0, replicas.ROUNDED),
        (states(at=0, steps="rounded", table="sum"), 0, "Rank 0's own numbers have changed: the"),
        (states(at=0, **all_of(2)), 0, "Every rank has the last rank's numbers."),
        (states(at=0, **all_of(1)), 0, "Rank 0's own numbers have changed. Which rank"),
        (states(at=0, **all_of(2, NAMES[1:])), 0, "Rank 0's own numbers have changed. Which rank"),
        (states(at=0, table="mean"), 0, "Rank 0's own numbers have changed: the"),
        (states(table=0, kept=2), 2, "The right numbers, in new tensors."),
        (states(steps="rounded"), 2, replicas.ROUNDED),
        (states(steps="rounded", table=2), 2, replicas.ROUNDED),
        (states(**all_of(2)), 2, "Every rank has kept its own numbers."),
        (states(table=2), 2, "One buffer is not in state_dict()"),
        (states(steps=2), 2, "The parameters are rank 0's. Which other tensors"),
        (states(steps=2, table=2), 2, "The parameters are rank 0's. Which other tensors"),
        (states(frozen_weight=2), 2, "Some parameters do not train"),
        (states(frozen_weight=2, table=2), 2, "Some parameters do not train"),
        (states(layer_bias=2), 2, "On rank 2 some tensors hold neither"),
        (states(at=1, table=2), 1, "On rank 1 some tensors hold neither"),
        (states(**all_of(1)), 2, "On rank 2 some tensors hold neither"),
        (states(table="gone"), 2, "On rank 2 some tensors hold neither"),
    ],
)
def test_hints_for_states(runs, rank, hint):
    assert replicas.hint_state(deepcopy(runs), rank).startswith(hint)


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("rank 1 was waiting in broadcast", "In a broadcast *every* rank makes the call"),
        ("a leaf Variable that requires grad is used", "Autograd records changes"),
        ("KeyError: 'broadcast'", ""),
    ],
)
def test_hints_for_errors_of_broadcast_state(finding, hint):
    found = replicas.hint_state_error(finding)
    assert found.startswith(hint)
    assert bool(found) == bool(hint)

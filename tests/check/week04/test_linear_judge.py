"""The judge of parallel linear layers, alone, on reports that are written by hand."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from helpers.check.oracle import HANG_HINT, NotRight
from helpers.check.week04 import linear
from helpers.check.week04.kinds import OTHER, RIGHT

DUE = {"forward": 0, "backward": 240}


def reports(ranks=3):
    return [
        {
            "unwaited": {"forward": 0, "backward": 0},
            "messages": {"forward": [], "backward": [("all_reduce", 240)]},
            "due": DUE,
            **dict.fromkeys(("y", *linear.NAMES), RIGHT),
            "changed": [],
        }
        for _ in range(ranks)
    ]


def judged(change, rank=2):
    runs = deepcopy(reports())
    change(runs[rank])
    with pytest.raises(NotRight) as wrong:
        linear.judge_linear(runs, 5, "column_linear")
    return wrong.value


def test_what_is_right_passes():
    linear.judge_linear(reports(), 5, "column_linear")


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", ["y", *linear.NAMES])
def test_each_value_of_each_rank_counts(name, rank):
    wrong = judged(lambda run: run.update({name: OTHER}), rank)
    lines = wrong.finding.splitlines()
    phase = "forward" if name == "y" else "backward"
    sent = "no message" if name == "y" else "all_reduce of 240 bytes"
    assert lines[0] == f"B = 2, T = 3, D = 5, F = 12; after the {phase}, rank {rank} has"
    shown = ("y",) if name == "y" else linear.NAMES
    assert lines[1:-1] == [f"  {one}: {OTHER if one == name else RIGHT}" for one in shown]
    assert lines[-1] == f"  messages in the {phase}: {sent}"


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_phase_that_ends_too_early_and_wrong_messages(phase, rank):
    wrong = judged(lambda run: run["unwaited"].update({phase: 1}), rank)
    assert wrong.finding.endswith(f"the {phase} of rank {rank} returned before an all-reduce was "
                                  "over")  # fmt: skip
    assert "only starts" in wrong.hint
    more = [("all_gather", 1234), ("all_reduce", 240)]
    wrong = judged(lambda run: run["messages"].update({phase: more}), rank)
    need = "no message" if phase == "forward" else "all_reduce of 240 bytes"
    assert wrong.finding.endswith(
        f"in the {phase} rank {rank} sent all_gather of 1,234 bytes, all_reduce of 240 bytes; "
        f"3 ranks need {need}"
    )
    leave = "can you leave out" if phase == "forward" else "adds them up"
    assert leave in wrong.hint


def test_the_size_of_the_message_counts():
    for size in (239, 241):
        wrong = judged(lambda run: run["messages"].update(backward=[("all_reduce", size)]))  # noqa: B023
        assert "another size" in wrong.hint
    assert "computed other ranks' parts" in judged(
        lambda run: run["messages"].update(backward=[])
    ).hint  # fmt: skip


def test_one_message_too_many_of_the_right_size():
    twice = [("all_reduce", 240)] * 2
    assert (
        "One all-reduce is enough"
        in judged(lambda run: run["messages"].update(backward=twice)).hint
    )


def reported(monkeypatch, change, on_all=True):
    """What rank 1 of 3 reports of a row's layer: the right answers, but for this change."""

    def others(wrong):
        wrong += not on_all

    monkeypatch.setattr(linear, "dist", SimpleNamespace(all_reduce=others))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    _, _, found, _ = linear.row(1, 3, 5)

    def solve(worker, *given):
        def backward(of_y):
            return change([found[name][RIGHT] for name in linear.NAMES], given, of_y)

        return found["y"][RIGHT], backward

    return linear.run_linear(SimpleNamespace(rank=1, world_size=3), solve, linear.row, 5)


def test_what_a_rank_reports(monkeypatch):
    right = dict.fromkeys(("y", *linear.NAMES), RIGHT) | {
        "unwaited": {"forward": 0, "backward": 0}, "messages": {"forward": [], "backward": []},
        "due": {"forward": 240, "backward": 0}, "changed": [],
    }  # fmt: skip
    assert reported(monkeypatch, lambda answers, given, of_y: answers) == right

    def writes(answers, given, of_y):
        given[1][-1, -1] += 1
        of_y[0] = 0
        return answers

    assert reported(monkeypatch, writes) == right | {"changed": ["weight", "of_y"]}

    def last_is_wrong(answers, given, of_y):
        return *answers[:2], 3 * answers[2]

    found = reported(monkeypatch, last_is_wrong)
    assert found == right | {"of_bias": "N times the right one"}
    found = reported(monkeypatch, lambda answers, *_: answers[:2])
    assert found == {"returned": "2 values from backward, not three gradients"}
    found = reported(monkeypatch, None, on_all=False)  # another rank was wrong
    assert "of_x" not in found
    assert found["y"] == RIGHT


def test_what_was_written_and_what_was_returned():
    wrong = judged(lambda run: run.update(changed=["weight", "of_y"]))
    assert wrong.finding == "right, but rank 2 wrote into weight, which it was given"
    wrong = judged(lambda run: run.update(returned="3 values from backward"))
    assert wrong.finding == "rank 2 returned 3 values from backward"
    assert "of_x, of_weight and of_bias" in wrong.hint


def test_the_words_for_an_answer():
    assert linear.shown(torch.ones(2, 3)) == "a tensor (2, 3)"
    assert linear.shown((1, 2, 3)) == linear.shown([None] * 3) == "3 values"
    assert linear.shown(None) == "None"


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("mat1 and mat2 shapes", "Two sizes do not fit"),
        ("The size of tensor a (3) must match", "Two sizes do not fit"),
        ("shapes cannot be multiplied", "Two sizes do not fit"),
        ("The expanded size of the tensor", "Two sizes do not fit"),
        ("rank 0: no sign of life", HANG_HINT),
        ("rank 1 died: SIGABRT", HANG_HINT),
        ("KeyError: 'x'", ""),
    ],
)
def test_hints_for_errors(finding, hint):
    found = linear.hint_failure(finding, "row_linear")
    assert found.startswith(hint)
    assert bool(found) == bool(hint)


@pytest.mark.parametrize(("ranks", "width"), linear.CASES)
def test_the_right_values_are_autograd_s(ranks, width):
    """Of one layer with all outputs, in one process."""
    for layer, shape in ((linear.column, (12, width)), (linear.row, (width, 12))):
        given = linear.numbers(2, 3, shape[1], seed=1)
        weight, bias = linear.numbers(*shape, seed=2), linear.numbers(shape[0], seed=3)
        leaves = [tensor.requires_grad_() for tensor in (given, weight, bias)]
        y = torch.nn.functional.linear(*leaves)
        of_y = linear.numbers(2, 3, shape[0], seed=4)
        of_x, of_weight, of_bias = torch.autograd.grad(y, leaves, of_y)
        for rank in range(ranks):
            (x, w, b), gradient, found, due = layer(rank, ranks, width)
            own = slice(12 // ranks * rank, 12 // ranks * (rank + 1))
            assert torch.equal(w, weight)
            assert torch.equal(b, bias)
            if layer is linear.column:
                right = y[..., own], of_x, of_weight[own], of_bias[own]
                assert torch.equal(x, given)
                assert torch.equal(gradient, of_y[..., own])
                assert due == {"forward": 0, "backward": width}
            else:
                right = y, of_x[..., own], of_weight[:, own], of_bias
                assert torch.equal(x, given[..., own])
                assert x.is_contiguous()
                assert torch.equal(gradient, of_y)
                assert due == {"forward": width, "backward": 0}
            for name, value in zip(("y", *linear.NAMES), right, strict=True):
                torch.testing.assert_close(found[name][RIGHT], value.detach(), msg=name)


def test_some_wrong_values_by_hand():
    x, weight, bias = (linear.numbers(*shape, seed=seed) for shape, seed in
                       (((2, 3, 12), 1), ((12, 12), 2), ((12,), 3)))  # fmt: skip
    of_y = linear.numbers(2, 3, 12, seed=4)
    own, products = slice(3, 6), x @ weight.t()
    columns, rows = (layer(1, 4, 12)[2] for layer in (linear.column, linear.row))
    parts = [x[..., 3 * r : 3 * r + 3] @ weight[:, 3 * r : 3 * r + 3].t() for r in range(4)]
    outputs = [of_y[..., 3 * r : 3 * r + 3] @ weight[3 * r : 3 * r + 3] for r in range(4)]
    mixed = sum(of_y[..., 3 * r : 3 * r + 3] for r in range(4))
    for found, value in (
        (columns["y"]["with W instead of its transpose"], (x @ weight + bias)[..., own]),
        (columns["y"]["without the bias"], products[..., own]),
        (columns["y"]["N times the products"], 4 * products[..., own] + bias[own]),
        (columns["y"]["every N-th output"], (products + bias)[..., 1::4]),
        (columns["y"]["with rank 3's bias"], products[..., own] + bias[9:]),
        (columns["of_x"]["this rank's part of the sum"], outputs[1]),
        (columns["of_x"]["this rank's part, divided by N"], outputs[1] / 4),
        (columns["of_x"]["the mean over the ranks"], sum(outputs) / 4),
        (columns["of_x"]["from summed gradients of y"], mixed @ weight[own]),
        (columns["of_bias"]["the mean over the tokens"], of_y.mean((0, 1))[own]),
        (columns["of_weight"]["the gradient of rank 2"],
         of_y[..., 6:9].flatten(0, 1).t() @ x.flatten(0, 1)),
        (rows["y"]["with W instead of its transpose"], x @ weight + bias),
        (rows["y"]["the sum, and N times the bias"], products + 4 * bias),
        (rows["y"]["the sum, without the bias"], products),
        (rows["y"]["this rank's part of the sum, and the bias"], parts[1] + bias),
        (rows["y"]["the mean over the ranks, and the bias"], products / 4 + bias),
        (rows["y"]["the right one, divided by N"], (products + bias) / 4),
        (rows["of_bias"]["the mean over the tokens"], of_y.mean((0, 1))),
        (rows["of_x"]["the whole gradient"], of_y @ weight),
        (rows["of_weight"]["the mean over the ranks"],
         sum((of_y.flatten(0, 1).t() @ x.flatten(0, 1)).split(3, 1)) / 4),
    ):  # fmt: skip
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-12)

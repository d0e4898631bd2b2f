"""What ranks reported, beside one process: each judge alone, without ranks."""

import math

import pytest
import torch

from helpers.check.oracle import NotRight
from helpers.check.week03.mpi_rank import RATE, flat, model_of
from helpers.check.week03.mpi_twin import Twin, judge, judge_losses, judge_rows, kind_of, same

GRADIENTS = [torch.tensor([3.0, -1.0]), torch.tensor([1.0, 4.0]), torch.tensor([-2.0, 0.5])]
GRADIENTS = [gradient.double() for gradient in GRADIENTS]
COUNTS = [4, 0, 6]
WHOLE = torch.tensor([2.0, 3.5], dtype=torch.float64)
MEANS = GRADIENTS[0] / 4 + GRADIENTS[1] + GRADIENTS[2] / 6


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        (WHOLE / 10, "right"),
        (0 * WHOLE, "nothing"),
        (0 * WHOLE + 1e-14, "nothing"),  # rounding of a difference
        (-WHOLE / 10, "uphill"),
        (WHOLE, "summed"),
        (WHOLE / 3, "mean over ranks"),
        (WHOLE * 0.3, "times ranks"),
        (WHOLE / 30, "divided twice"),
        (MEANS / 3, "mean of means"),
        (MEANS, "sum of means"),
        (GRADIENTS[2] / 6, "own"),
        (GRADIENTS[2] / 10, "own over all"),
        (WHOLE / 6, "by own count"),
        (WHOLE / 10 + 1e-7, "single precision"),
        (WHOLE / 10 + 1e-9, "single precision"),
        (WHOLE / 10 + 1e-3, "other"),
    ],
)
def test_the_kind_of_an_update(update, kind):
    assert kind_of(update, GRADIENTS, COUNTS, 2) == kind


def test_large_numbers_may_be_rounded_more():
    large = [1e9 * gradient for gradient in GRADIENTS]
    assert kind_of(1e9 * WHOLE / 10 + 0.01, large, COUNTS, 0) == "right"
    assert kind_of(1e9 * WHOLE / 10 + 1, large, COUNTS, 0) != "right"
    assert kind_of(large[0] / 4, large, COUNTS, 0) == "own"
    assert kind_of(large[1], large, COUNTS, 1) == "own"  # a rank without targets divides by 1


@pytest.mark.parametrize(
    ("shards", "hint"),
    [
        ([[3, 1], [2, 0]], None),
        ([[], [0, 1, 2, 3]], None),
        ([[0, 1, 2, 3], [3, 2, 1, 0]], "takes the whole batch"),
        ([[0, 1, 2, 3], [3, 2, 1]], "on two ranks"),
        ([[0, 1], [0, 1]], "see the same rows"),
        ([[0, 1], [2]], r"Rows \[3\] are on no rank"),
        ([[0, 1], [2, 3, 3]], "Each row counts once"),
        ([[0, 1], [2, 3, 9]], "not of this batch"),
        ([[0, 1]], r"Rows \[2, 3\] are on no rank"),
        ([[0, 1, 2, 3, 3]], "Each row counts once"),
    ],
)
def test_rows(shards, hint):
    if hint is None:
        return judge_rows(shards, [0, 1, 2, 3], 1)
    with pytest.raises(NotRight, match=r"step 2, global batch \[0, 1, 2, 3\]") as error:
        judge_rows(shards, [0, 1, 2, 3], 1)
    with pytest.raises(AssertionError, match=hint):
        raise AssertionError(error.value.hint)


@pytest.fixture(scope="module")
def twin():
    pixels = torch.rand(30, 65, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pixels[:, 64] = torch.arange(30) % 10
    return Twin("digits", pixels)


def reports(twin, ranks=2):
    """What ranks report that do everything right."""
    shards = [[part.tolist() for part in rows.tensor_split(ranks)] for rows in twin.batches]
    return [
        {
            "calls": [
                {"rows": shards[step][rank], "state": twin.states[step].tolist()}
                for step in range(len(twin.batches))
            ],
            "losses": list(twin.losses),
            "state": twin.states[-1].tolist(),
        }
        for rank in range(ranks)
    ]


def test_one_process_by_pytorch_s_own_optimizer(twin):
    model = model_of("digits", 0)
    optimizer, states, losses = torch.optim.SGD(model.parameters(), RATE), [flat(model)], []
    for rows in twin.batches:
        loss, count = twin.summed(model, rows)
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append(loss.item() / count)
        states.append(flat(model))
    torch.testing.assert_close(torch.stack(twin.states), torch.stack(states), rtol=0, atol=1e-12)
    assert twin.losses == pytest.approx(losses, rel=1e-12)


def test_ranks_begin_with_models_of_their_own():
    assert torch.equal(flat(model_of("gpt", 1)), flat(model_of("gpt", 1)))
    for work in ("digits", "gpt"):
        assert not torch.equal(flat(model_of(work, 0)), flat(model_of(work, 1)))


def test_what_is_right_passes(twin):
    for ranks in (1, 2, 3):
        judge(reports(twin, ranks), twin)
    nearly = reports(twin)
    nearly[1]["losses"] = [loss * (1 + 1e-10) for loss in twin.losses]
    judge(nearly, twin)


def twice(found):
    found[1]["calls"].append(found[1]["calls"][0])


def another_start(found):
    found[1]["calls"][0]["state"][5] += 1e-3


def no_second_step(found):
    found[1]["calls"][1]["state"] = found[1]["calls"][0]["state"]


def another_end(found):
    found[1]["state"][0] += 1e-9


def other_rows_later(found):
    found[0]["calls"][2]["rows"] = []


def one_loss(place, factor):
    def change(found):
        found[1]["losses"][place] *= factor

    return change


def losses(change):
    def changed(found):
        found[1]["losses"] = change(found[1]["losses"])

    return changed


@pytest.mark.parametrize(
    ("mistake", "words", "hint"),
    [
        (twice, "rank 1 called loss_sum 5 times in 4 steps", "once a step"),
        (other_rows_later, "step 3, global batch", "are on no rank"),
        (another_start, "rank 1 does not have rank 0's parameters", "those of rank 0"),
        (no_second_step, "the update is none", "changes the model's parameters"),
        (another_end, "after 4 steps the parameters of rank 1 differ", "the step before"),
        (losses(lambda all_: all_[:-1]), "rank 1 returned 3 losses", "each of the 4 steps"),
        (losses(lambda all_: [*all_, 0.0]), "rank 1 returned 5 losses", "each of the 4 steps"),
        (losses(lambda all_: "Tensor"), "rank 1 returned Tensor", "each of the 4 steps"),
        (losses(lambda all_: ["Tensor"] * 4), "a list of Tensor", "Python number"),
        (one_loss(0, 1 + 1e-7), "rank 1 returned the losses", "Does a float32"),
        (one_loss(3, 1 + 1e-7), "rank 1 returned the losses", ""),
        (one_loss(0, 3.0), "rank 1 returned the losses", "the mean over the targets"),
    ],
)
def test_the_first_mistake_is_told(twin, mistake, words, hint):
    found = reports(twin)
    mistake(found)
    with pytest.raises(NotRight, match=words) as error:
        judge(found, twin)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("of", "hint"),
    [
        (lambda sums, counts: sum(sums), "Divide it by the targets of the global batch"),
        (lambda sums, counts: sum(sums) / 3, "over the number of ranks"),
        (lambda sums, counts: sums[1] / counts[1], "of this rank's rows alone"),
        (lambda sums, counts: sums[1] / sum(counts), "this rank's part"),
    ],
)
def test_a_loss_of_another_kind(twin, of, hint):
    found = reports(twin, 3)
    _, sums, counts = twin.first_step([one["calls"][0]["rows"] for one in found])
    found[1]["losses"][0] = of(sums, counts)
    with pytest.raises(NotRight) as error:
        judge_losses(found, twin)
    assert hint in error.value.hint


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_used_its_own_gradient_alone(twin, rank):
    found = reports(twin, 3)
    rows = found[rank]["calls"][0]["rows"]
    model = model_of("digits", 0)
    loss, count = twin.summed(model, torch.tensor(rows))
    (loss / count).backward()
    own = torch.cat([p.grad.flatten() for p in model.parameters()])
    found[rank]["calls"][1]["state"] = (twin.states[0] - RATE * own).tolist()
    with pytest.raises(NotRight, match="the update is of this rank's rows alone") as error:
        judge(found, twin)
    assert error.value.finding.startswith(f"step 1, rank {rank}; targets on the ranks: [4, 4, 3]")
    assert "not shared their gradients" in error.value.hint


def test_parameters_of_another_shape_are_not_the_same():
    right = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert same([1.0, 2.0 + 1e-12], right)
    assert not same([1.0, 2.0 + 1e-8], right)
    assert not same([1.0], right)
    assert not same([1.0, math.nan], right)

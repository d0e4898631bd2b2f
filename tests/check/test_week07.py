"""Week 7, beyond the loop over all exercises: the references, and what is measured."""

import random

import pytest
import torch

from helpers import check
from helpers.check.week07 import files, wrapping
from helpers.plans.deepspeed_config import read
from helpers.plans.zero_memory import peak
from notebooks.solutions import week07


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("units", [1, 2, 3, 6])
def test_the_peak_is_the_largest_of_all_moments(units, ranks):
    assert wrapping.of_units(units, 36.0, ranks) == pytest.approx(peak([36.0] * units, ranks).total)


def test_a_budget_is_between_two_peaks():
    for _, (blocks, block, ranks, budget) in wrapping.budgets():
        per_unit, held = wrapping.choose(blocks, block, ranks, budget)
        larger = min(k for k in (2, 3, 6) if k > per_unit)
        assert held < budget < wrapping.of_units(blocks // larger, larger * block, ranks)


@pytest.mark.usefixtures("as_predicted")
@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda u, b, n, budget: (4, 1.0), "must divide 6"),
        (lambda u, b, n, budget: (2.5, 1.0), "must divide 6"),
        (lambda u, b, n, budget: (0, 1.0), "must divide 6"),
        (lambda u, b, n, budget: (6, wrapping.of_units(1, 6 * b, n)), "above the budget"),
        (lambda *given: (wrapping.choose(*given)[0], 1.06 * wrapping.choose(*given)[1]), "Add up"),
    ],
)
def test_a_wrapping_that_cannot_be_and_a_peak_that_was_not_measured(answer, hint):
    verdict = check.choose_wrapping(answer)
    assert verdict.status == "wrong"
    assert hint in verdict.hint


@pytest.mark.usefixtures("as_predicted")
def test_a_whole_float_and_a_peak_within_five_percent_are_fine():
    def near(*given):
        per_unit, held = week07.choose_wrapping(*given)
        return [float(per_unit), 1.04 * held]

    assert check.choose_wrapping(near)
    said = check.choose_wrapping(lambda *given: (6, 1.0)).finding
    assert "6 blocks in a unit; you said 1 bytes, and a rank held " in said


def test_rows_are_cut_as_torch_cuts():
    for rows in range(12):
        for ranks in range(1, 6):
            found = [
                list(range(*files.bounds(rows, rank, ranks)))
                for rank in range(ranks)
                if files.bounds(rows, rank, ranks)[0] < rows
            ]
            assert found == [one.tolist() for one in torch.arange(rows).chunk(ranks) if len(one)]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("given", [(2, 0, 1), (-1, 0, 1), (1, -1, 2), (1, 3, 2), (1, 0, 6)])
def test_a_file_has_no_other_rows(given):
    def solve(worker, rows, saved, read):
        assert torch.equal(read(1, 0, 5)[:, 0], torch.arange(5) * 3.0 + 16)
        assert read(1, 5, 5).shape == (0, 3)
        return read(*given)

    verdict = check.reshard_rows(solve)
    assert f"read{given}: the file of rank {given[0]} has rows 0 to " in verdict.finding
    assert "counts from the first row of that file" in verdict.hint


@pytest.mark.parametrize("seed", range(20))
def test_settings_mean_what_the_plans_read(seed):
    _, (settings, ranks, params) = files.drawn_settings(random.Random(seed))
    right = read(settings, ranks)
    found = files.meaning(settings, ranks, params)
    assert tuple(found.pop("sharded")) == right.sharded
    assert found.pop("gpu_bytes") == pytest.approx(right.on_gpu(params).total)
    assert found == {
        "batch": right.batch, "micro_batch": right.micro_batch, "accumulation": right.accumulation,
    }  # fmt: skip


def test_the_order_of_the_sharded_kinds_is_free():
    def backwards(*given):
        right = week07.read_deepspeed(*given)
        return right | {"sharded": tuple(right["sharded"][::-1])}

    assert check.read_deepspeed(backwards)

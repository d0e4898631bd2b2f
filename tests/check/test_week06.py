"""Week 6, beyond the loop over all exercises: the references, and other right answers."""

import random

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.week06 import amounts
from helpers.plans.zero_memory import States, padded, zero_memory


@pytest.mark.parametrize("seed", range(8))
def test_bytes_per_rank_are_the_paper_s_where_the_ranks_divide(seed):
    params, ranks, stage, *each = amounts.bytes_per_rank.draw(random.Random(seed))
    states = States(**dict(zip(amounts.KINDS, each, strict=True)))
    even = padded(params, ranks)
    paper = zero_memory(even, ranks, stage, each=states).by_kind()
    assert amounts.held(even, ranks, stage, *each) == pytest.approx(paper)
    assert sum(amounts.held(params, ranks, stage, *each).values()) <= sum(paper.values())


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("ranks", "micro_batches"), [(3, 1), (2, 3), (1, 1)])
def test_the_kernel_counts_what_the_formula_says(ranks, micro_batches):
    for stage, sent in enumerate(amounts.kernel_counts(ranks, micro_batches)):
        right = amounts.step_bytes(amounts.PARAMS, ranks, stage, amounts.NUMBER, micro_batches)
        assert sent is None or right <= sent <= right + 8192, stage  # headers


def test_grading_asks_for_another_number_of_ranks():
    usual = {arguments[1] for _, arguments in amounts.steps()}
    with drawn_from(20_261):
        assert {arguments[1] for _, arguments in amounts.steps()} != usual


def with_torch(worker, params, numbers, make_optimizer, max_norm):
    """PyTorch's own calls: a parameter that is a view, and its way to clip."""
    size = len(params) // worker.world_size
    shards = list(params.split(size))
    mine = torch.nn.Parameter(shards[worker.rank])
    optimizer = make_optimizer([mine])
    real = torch.arange(size) + worker.rank * size < numbers

    def step(gradients):
        mine.grad = torch.empty_like(mine)
        dist.reduce_scatter(mine.grad, list(gradients.split(size)))
        mine.grad /= worker.world_size
        norm = (mine.grad * real).square().sum()
        dist.all_reduce(norm)
        norm = norm.sqrt()
        mine.grad *= min(1.0, max_norm / (norm + 1e-6))
        optimizer.step()
        dist.all_gather(shards, mine.data)
        return norm

    return step


@pytest.mark.usefixtures("shared_ranks")
def test_torch_s_way_to_clip_passes():
    verdict = check.zero_1(with_torch)
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks", "no_hints")
def test_a_small_error_of_one_number_is_found():
    def nearly(worker, params, *arguments):
        step = with_torch(worker, params, *arguments)

        def shifted(gradients):
            norm = step(gradients)
            params[0] += 1e-6 * (worker.rank == worker.world_size - 1)
            return norm

        return shifted

    verdict = check.zero_1(nearly)
    assert verdict.status == "wrong"
    assert "parameters after step 1" in verdict.finding

"""ZeRO-1: the solution passes; each common mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week06.stage_1 import draw
from helpers.comm.collectives import ring_reduce_scatter
from notebooks.solutions import week06
from tests.check.asked import drawn_anew
from tests.check.told import told

pytestmark = pytest.mark.usefixtures("shared_ranks")


def stage_1(
    *,
    reduce="scatter",
    mean="once",
    norm="real",
    over="squares",
    clip="norm",
    state="shard",
    gather="after",
    returned="norm",
    safe=True,
):
    """The solution, with one part of it changed."""

    def solve(worker, params, numbers, make_optimizer, max_norm):
        n, size = worker.world_size, len(params) // worker.world_size
        mine = slice(worker.rank * size, (worker.rank + 1) * size)
        real = min(max(numbers - worker.rank * size, 0), size)
        kept = params.clone() if state == "whole" else params[mine].clone()
        optimizer = make_optimizer([kept])
        shard = kept[mine] if state == "whole" else kept

        def gather_all():
            dist.all_gather(list(params.split(size)), shard.clone())

        def step(gradients):
            own = gradients[mine].clone()
            if reduce == "scatter":
                ring_reduce_scatter(own, gradients)
            elif reduce == "all":
                dist.all_reduce(gradients)
                own = gradients[mine].clone()
            if mean != "none" and reduce != "nothing":
                own /= n
            if mean == "twice":
                own /= n
            counted = {"real": own[:real], "all": own}[norm]
            total = counted.norm() if over in ("norms", "nothing") else counted.square().sum()
            if over != "nothing":
                dist.all_reduce(total)
            total = total.sqrt() if over == "squares" else total
            before = total.item()
            if returned == "whole":
                squares = own[:real].square().sum()
                dist.all_reduce(squares)
                before = squares.sqrt().item()
            if clip == "norm":
                own *= min(1.0, max_norm / total if safe or total else 0.0)
            elif clip == "torch, own shard":
                own *= min(1.0, max_norm / (own.norm() + 1e-6))
            elif clip == "always":
                own *= max_norm / total
            elif clip == "square":
                own *= min(1.0, max_norm / (total**2 + 1e-6))
            elif clip == "norm of the sum":
                own *= min(1.0, max_norm / (n * total + 1e-6))
            elif clip == "each number":
                own.clamp_(-max_norm, max_norm)
            elif clip == "no guard":
                own *= torch.where(total > max_norm, max_norm / total, total / total)
            if mean == "again after clipping":
                own /= n
            kept.grad = torch.zeros_like(kept)
            kept.grad[mine if state == "whole" else slice(None)] = own
            if state == "new in each step":
                make_optimizer([kept]).step()
                gather_all()
                return before
            if gather == "before":
                gather_all()
            optimizer.step()
            if gather == "after":
                gather_all()
            if gather == "own":
                params[mine] = shard
            if gather == "rebound":
                return torch.cat([params[:0], shard]).sum()
            return {"norm": before, "whole": before, "none": None, "clipped": min(before, max_norm),
                    "squared": before**2, "tensor": total}[returned]  # fmt: skip

        return step

    return solve


def whole_sum_returned(worker, params, numbers, make_optimizer, max_norm):
    right = week06.zero_1(worker, params, numbers, make_optimizer, max_norm)
    return lambda gradients: right(gradients) * worker.world_size


def nearly(worker, params, numbers, make_optimizer, max_norm):
    """One number of one rank is wrong by a millionth after a step."""
    right = week06.zero_1(worker, params, numbers, make_optimizer, max_norm)

    def step(gradients):
        norm = right(gradients)
        params[0] += 1e-6 * (worker.rank == worker.world_size - 1)
        return norm

    return step


def padded_norm_returned(worker, params, numbers, make_optimizer, max_norm):
    right = week06.zero_1(worker, params, numbers, make_optimizer, max_norm)
    padding = 9.0 * (len(params) - numbers)
    return lambda gradients: (right(gradients) ** 2 + padding) ** 0.5


def local_norm_returned(worker, params, numbers, make_optimizer, max_norm):
    right, size = week06.zero_1(worker, params, numbers, make_optimizer, max_norm), len(params)
    mine = slice(worker.rank * size // worker.world_size, numbers)

    def step(gradients):
        mean = gradients.clone()
        dist.all_reduce(mean)
        mean = mean[mine][: size // worker.world_size] / worker.world_size
        right(gradients)
        return mean.norm()

    return step


def without_optimizer(worker, params, numbers, make_optimizer, max_norm):
    made = []
    step = week06.zero_1(
        worker, params, numbers, lambda tensors: made.append(Momentum(tensors)) or made[0], max_norm
    )
    return step


class Momentum:
    """SGD with momentum, by hand: correct, but not the optimizer that was given."""

    def __init__(self, tensors):
        (self.tensor,) = tensors
        self.velocity = torch.zeros_like(self.tensor)

    def step(self):
        self.velocity = 0.9 * self.velocity + self.tensor.grad
        self.tensor -= 0.5 * self.velocity


def data_parallel(worker, params, numbers, make_optimizer, max_norm):
    """No ZeRO: the mean of all gradients, and PyTorch's way to clip all that is in the row."""
    optimizer = make_optimizer([params])

    def step(gradients):
        dist.all_reduce(gradients)
        params.grad = gradients / worker.world_size
        norm = torch.nn.utils.clip_grad_norm_([params], max_norm)
        optimizer.step()
        return norm

    return step


def added_up(worker, params, numbers, make_optimizer, max_norm):
    """The gradient of a step is added to that of the step before."""
    right, kept = week06.zero_1(worker, params, numbers, make_optimizer, max_norm), []

    def step(gradients):
        mean = gradients.clone()
        dist.all_reduce(mean)
        mean /= worker.world_size
        total = mean if not kept else kept[0] + mean
        norm = right(total.clone())
        kept[:] = [total * min(1.0, max_norm / norm)]
        return norm

    return step


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


@pytest.mark.parametrize("solution", [week06.zero_1, stage_1(returned="tensor"), with_torch])
def test_the_solution_passes(solution):
    verdict = check.zero_1(solution)
    assert verdict, verdict


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (stage_1(state="whole"), "optimizer's state is not sharded"),
        (stage_1(norm="all"), "padding is counted in the norm"),
        (stage_1(gather="own"), "brings the updated shards"),
        (stage_1(gather="before"), "are what they were"),
        (stage_1(gather="never"), "are what they were"),
        (stage_1(mean="twice"), "mean is taken twice"),
        (stage_1(mean="again after clipping"), "mean is taken twice"),
        (stage_1(mean="none"), "One process takes their mean"),
        (stage_1(reduce="nothing"), "other ranks' gradients"),
        (stage_1(reduce="all"), "sends twice the bytes"),
        (stage_1(over="nothing"), "norm of this rank's shard"),
        (stage_1(over="nothing", returned="whole"), "norm of its own shard"),
        (stage_1(over="norms", returned="whole"), "Norms of shards do not add up"),
        (stage_1(norm="all", returned="whole"), "padding is counted in the norm"),
        (stage_1(over="norms"), "Norms of shards do not add up"),
        (stage_1(clip="never"), "is not clipped"),
        (stage_1(clip="torch, own shard"), "norm of its own shard"),
        (stage_1(clip="always"), "must stay as they are"),
        (stage_1(clip="square"), "Where is the root"),
        (stage_1(clip="norm of the sum"), "Of which gradient is the norm"),
        (stage_1(clip="each number"), "has another direction"),
        (stage_1(state="new in each step"), "How often is make_optimizer called"),
        (data_parallel, "padding is counted in the norm"),
        (added_up, "between two steps"),
        (stage_1(returned="none"), "norm of the whole gradient before clipping"),
        (stage_1(returned="clipped"), "before clipping"),
        (stage_1(returned="squared"), "square of the norm"),
        (whole_sum_returned, "norm of the sum over the ranks"),
        (padded_norm_returned, "padding is counted in the norm"),
        (nearly, ""),  # whatever the guess
        (local_norm_returned, "norm of this rank's shard"),
        (without_optimizer, "Call make_optimizer"),
        (lambda *_: None, "Return the function"),
        (lambda *_: lambda gradients: 1.0, "are what they were"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    told(check.zero_1(mistake), hint)


def test_padding_alone_has_a_norm_of_zero():
    def solve(worker, params, numbers, make_optimizer, max_norm):
        right = week06.zero_1(worker, params, numbers, make_optimizer, max_norm)
        size = len(params) // worker.world_size
        real = numbers - worker.rank * size

        def step(gradients):
            norm = right(gradients)
            if real <= 0:
                params[:] = float("nan")
            return norm

        return step

    told(check.zero_1(solve), "nothing but padding")


def test_a_rank_that_leaves_the_collective_out(monkeypatch):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 0.5)  # times the check's patience

    def solve(worker, params, numbers, make_optimizer, max_norm):
        right = week06.zero_1(worker, params, numbers, make_optimizer, max_norm)
        size = len(params) // worker.world_size
        return right if numbers > worker.rank * size else lambda gradients: 0.0

    told(check.zero_1(solve), "nothing but padding")


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: draw(1, 2))

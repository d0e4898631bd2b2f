"""Week 11 on slow links, beyond the loop over all exercises: references, other right answers."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check import week11b as exercises
from helpers.plans.slow_links import break_even, node_messages, quantised_numbers, quantiser_seconds
from helpers.precision.blocks import Blocks


@pytest.mark.parametrize(("words", "given"), exercises.rows())
def test_codes_and_bound_are_those_of_the_package(words, given):
    row, size, bits = given
    codes, scales, bound = exercises.in_blocks(*given)
    own = codes * scales.repeat_interleave(size)[: len(row)]
    assert ((own - row).abs() <= bound * (1 + 1e-12)).all()
    if size % 2 == 0:  # as the package's blocks
        form = Blocks(bits=bits, size=size)
        decoded = form.decode(form.encode(row), torch.empty_like(row))
        torch.testing.assert_close(own, decoded, rtol=1e-6, atol=0)
        assert (bound <= form.bound(row)).all()


@pytest.mark.parametrize("words", [case[0] for case in exercises.second_shard.cases])
def test_all_shards_and_those_of_each_node_are_the_whole_row(words):
    numbers, nodes, local, _ = dict(exercises.second_shard.cases)[words]
    ranges = [exercises.two_ranges(numbers, nodes, local, r) for r in range(nodes * local)]
    shards, seconds = zip(*ranges, strict=True)
    for several in (shards, *(seconds[k * local : (k + 1) * local] for k in range(nodes))):
        starts, stops = zip(*several, strict=True)
        assert (starts[0], stops[-1]) == (0, numbers)
        assert starts[1:] == stops[:-1]


@pytest.mark.parametrize(("words", "given"), exercises.break_even_bandwidth.cases)
def test_the_break_even_is_that_of_the_plan(words, given):
    params, nodes, local, block, encode, decode = given
    ways = {"weights": (8, block), "secondary": True, "gradients": ((4, block), (4, block))}
    both = [node_messages([params], nodes, local, **one) for one in ({}, ways)]
    counts = quantised_numbers(params, nodes, local)
    q = quantiser_seconds(counts, {"encode": encode, "decode": decode})
    assert exercises.slow_enough(*given) == pytest.approx(break_even(*both, quantiser=q), rel=1e-9)


@pytest.mark.usefixtures("shared_ranks")
def test_a_round_is_a_step_of_torch_s_nesterov():
    for case in exercises.outer_round.asked():
        ranks, (size, lr, beta) = case.arguments[0], case.arguments[1].values()
        anchor, momentum = (exercises.normal(seed, size) for seed in (1, 2))
        drift = sum(exercises.normal(10 + rank, size) for rank in range(ranks)) / ranks
        param = anchor.clone().requires_grad_()
        sgd = torch.optim.SGD([param], lr=lr, momentum=beta, nesterov=beta > 0)
        sgd.state[param]["momentum_buffer"] = momentum.clone()
        param.grad = 0.1 * drift
        sgd.step()
        found = exercises.outer_round.expected(case)
        for rank in range(ranks):
            torch.testing.assert_close(found["the anchor"][rank], param.detach())
            if beta:
                own = sgd.state[param]["momentum_buffer"]
                torch.testing.assert_close(found["the momentum"][rank], own)


def by_gather(worker, anchor, own, momentum, lr, beta):
    """The mean of the parameters first, by an all-gather."""
    every = [torch.empty_like(own) for _ in range(worker.world_size)]
    dist.all_gather(every, own)
    gradient = anchor - torch.stack(every).mean(0)
    momentum = torch.add(gradient, momentum, alpha=beta)
    return [anchor - lr * gradient - lr * beta * momentum, momentum]


def row_by_row(row, size, bits):
    padded = torch.nn.functional.pad(row, (0, -len(row) % size)).view(-1, size)
    scales = padded.abs().amax(1) / (2 ** (bits - 1) - 1)
    codes = (padded / scales[:, None].clamp(min=1e-300)).round().flatten()[: len(row)]
    return [codes.int(), scales, scales.repeat_interleave(size)[: len(row)] / 2]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("quantise_blocks", row_by_row),
        ("second_shard", lambda *given: [list(pair) for pair in exercises.two_ranges(*given)]),
        ("outer_round", by_gather),
    ],
)
def test_other_right_answers_pass(name, answer):
    verdict = getattr(check, name)(answer)
    assert verdict, verdict

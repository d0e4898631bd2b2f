"""A rank whose numbers are wrong is found, whichever it is, in each case of each exercise."""

import pytest
import torch

from helpers import check
from notebooks.solutions import week01, week03, week04, week05, week06, week07, week08, week10
from tests.check.alone import found_on_each_rank

pytestmark = pytest.mark.usefixtures("shared_ranks")


def off(value):
    """The value with wrong numbers; of a function, one that returns wrong numbers."""
    if isinstance(value, torch.Tensor):
        return value + 1
    if isinstance(value, list | tuple):
        return type(value)(map(off, value))
    if callable(value):
        return lambda *given: off(value(*given))
    return value + 1e-3


def answers_wrongly(solution):
    return lambda *given: off(solution(*given))


def leaves_wrong(solution, tensors):
    """Right, and then these tensors of the arguments are changed."""

    def solve(*given):
        answer = solution(*given)
        with torch.no_grad():
            for tensor in tensors(*given):
                tensor += 1
        return answer

    return solve


def wrong_after_finish(worker, model, bucket_bytes):
    finish = week03.reduce_in_buckets(worker, model, bucket_bytes)

    def finish_wrongly():
        finish()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad += 1

    return finish_wrongly


def wrong_after_each_step(worker, params, *rest):
    step = week06.zero_1(worker, params, *rest)

    def step_wrongly(gradients):
        norm = step(gradients)
        params.add_(1)
        return norm

    return step_wrongly


def gradients(worker, model, *_):
    return [p.grad for p in model.parameters() if p.grad is not None]


ANSWERS = {
    "global_mean": week01.global_mean,
    "all_to_all": week01.all_to_all,
    "sum_uneven": week01.sum_uneven,
    "shard": week03.shard,
    "column_linear": week04.column_linear,
    "row_linear": week04.row_linear,
    "vocabulary_cross_entropy": week04.vocabulary_cross_entropy,
    "shard_flat": week06.shard_flat,
    "reshard_rows": week07.reshard_rows,
    "scan_over_ranks": week10.scan_over_ranks,
}
CHANGES = {
    "ring_all_reduce": (week01.ring_all_reduce, lambda worker, tensor: [tensor]),
    "tree_broadcast": (week01.tree_broadcast, lambda worker, tensor, source: [tensor]),
    "broadcast_state": (week03.broadcast_state, lambda worker, model: model.parameters()),
    "accumulate": (week03.accumulate, lambda worker, ddp, *_: ddp.parameters()),
    "sum_partial_gradients": (week04.sum_partial_gradients, gradients),
    "pipeline_step": (week05.pipeline_step, gradients),
    "scaled_step": (week08.scaled_step, lambda worker, master, *_: [master]),
}
PAIRS = {
    **{name: (right, answers_wrongly(right)) for name, right in ANSWERS.items()},
    **{name: (right, leaves_wrong(right, what)) for name, (right, what) in CHANGES.items()},
    "reduce_in_buckets": (week03.reduce_in_buckets, wrong_after_finish),
    "zero_1": (week06.zero_1, wrong_after_each_step),
}


@pytest.mark.parametrize("exercise", PAIRS)
def test_it_is_found_on_each_rank(exercise):
    assert len(found_on_each_rank(getattr(check, exercise), *PAIRS[exercise])) > 1

"""The references of the exercises against one process, torch's own, and what is measured."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from helpers.check import week10, week11b, week12, week12b, week14b
from helpers.check.verdict import NotRight
from helpers.check.watch import Call
from helpers.check.week01 import collectives, counts
from helpers.check.week03 import gradients, shards
from helpers.check.week04 import block, layers
from helpers.check.week06 import shards as sharded
from helpers.check.week07 import files
from helpers.check.week09 import cache, serving
from helpers.models.gpt import build, loss_sum

pytestmark = pytest.mark.usefixtures("shared_ranks")


def cases_of(exercise):
    """(ranks, arguments, the reference's trace) of each case."""
    return [(*case.arguments, exercise.expected(case)) for case in exercise.asked()]


def close(found, right):
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("earlier", [False, True])
def test_gradients_are_there_before_the_hooks_where_a_case_says_so(monkeypatch, earlier):
    found = []

    def looks(worker, model, bucket_bytes):
        found.extend(p.grad is not None for p in model.parameters() if p.requires_grad)

    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    gradients.run_buckets(SimpleNamespace(rank=0), looks, 400, earlier)
    assert set(found) == {earlier}


def test_column_linear_is_one_layer():
    for n, kwargs, trace in cases_of(layers.column_linear):
        x, weight, bias, _ = layers.column_given(0, n, **kwargs)
        of_y = torch.cat([layers.column_given(rank, n, **kwargs)[-1] for rank in range(n)], -1)
        leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
        y = torch.nn.functional.linear(*leaves)
        of_x, of_weight, of_bias = torch.autograd.grad(y, leaves, of_y)
        close(torch.cat(trace["y"], -1), y.detach())
        close(torch.cat(trace["of_weight"]), of_weight)
        close(torch.cat(trace["of_bias"]), of_bias)
        for rank in range(n):
            close(trace["of_x"][rank], of_x)


def test_row_linear_is_one_layer():
    for n, kwargs, trace in cases_of(layers.row_linear):
        parts = [layers.row_given(rank, n, **kwargs) for rank in range(n)]
        x, (_, weight, bias, of_y) = torch.cat([part[0] for part in parts], -1), parts[0]
        leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
        y = torch.nn.functional.linear(*leaves)
        of_x, of_weight, of_bias = torch.autograd.grad(y, leaves, of_y)
        close(torch.cat(trace["of_x"], -1), of_x)
        close(torch.cat(trace["of_weight"], -1), of_weight)
        for rank in range(n):
            close(trace["y"][rank], y.detach())
            close(trace["of_bias"][rank], of_bias)


@pytest.mark.parametrize("data", [layers.column_linear, layers.row_linear])
def test_both_layers_have_hints_for_gradients(data):
    assert {row[-1] for row in layers.GRADIENTS} <= {hint for _, hint in data.mistakes()}


def test_the_cross_entropy_is_torch_s():
    for n, kwargs, trace in cases_of(layers.vocabulary_cross_entropy):
        logits, targets = layers.logits_and_targets(**kwargs)
        logits.requires_grad_()
        right = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        (of_logits,) = torch.autograd.grad(right, logits)
        close(torch.cat(trace["the gradient of this rank's logits"], -1), of_logits)
        for rank in range(n):
            assert trace["the loss"][rank] == pytest.approx(right.item(), rel=1e-11)


def test_partial_sums_make_the_gradients_of_one_process():
    batch, twin = block.whole_model()
    block.backward_of(twin, batch)
    whole = {name: p.grad for name, p in twin.named_parameters()}
    for n, _, trace in cases_of(block.sum_partial_gradients):
        for rank in range(n):
            found = trace["gradients of whole parameters"][rank]
            assert len(found) > 5
            for name, gradient in found.items():
                close(gradient, whole[name])


def test_sums_and_exchanges():
    for n, kwargs, trace in cases_of(collectives.ring_all_reduce):
        ranks = [SimpleNamespace(rank=rank, world_size=n) for rank in range(n)]
        numbers = [collectives.contribution(worker, **kwargs) for worker in ranks]
        total = torch.tensor([sum(row) for row in zip(*numbers, strict=True)]).double()
        assert all(torch.equal(found, total) for found in trace["`tensor`"])
    for n, kwargs, trace in cases_of(collectives.tree_broadcast):
        right = torch.tensor([10.0 * kwargs["source"] + k for k in range(3)])
        assert all(torch.equal(found, right) for found in trace["`tensor`"])
        assert sum(len(calls) for calls in trace["calls"]) == 2 * (n - 1)
    assert not any(
        collectives.memory_of(list(torch.zeros(2, 3)), []).values()
    )  # rows of one buffer
    for n, kwargs, trace in cases_of(collectives.all_to_all):
        for rank in range(n):
            for source, found in enumerate(trace["the result"][rank]):
                assert torch.equal(found, collectives.part(source, rank, **kwargs))


def test_means_and_uneven_sums():
    for _, kwargs, trace in cases_of(collectives.global_mean):
        every = [value for shard in kwargs["shards"] for value in shard]
        assert trace["the result"] == pytest.approx(
            [math.fsum(every) / len(every)] * len(trace["the result"])
        )
    for n, kwargs, trace in cases_of(collectives.sum_uneven):
        lengths = kwargs["counts"]
        right = [
            sum(collectives.value(rank, step) for rank in range(n) if step < lengths[rank])
            for step in range(max(lengths))
        ]
        for found in trace["the result"]:
            assert [each.tolist() for each in found] == [
                [value] * collectives.SIZE for value in right
            ]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_are_those_that_the_kernel_counts(ranks):
    """gloo's headers are 48 bytes a message, and the barriers send some."""
    for collective, counted in counts.kernel_counts(ranks).items():
        if counted is not None:
            assert 0 <= counted - counts.wire(collective, ranks, counts.BUFFER) <= 4096


def test_shards_and_states():
    for _, kwargs, trace in cases_of(shards.shard):
        firsts = [row // 10 for rows in trace["the result"] for row in rows[:, 0].tolist()]
        assert firsts == list(range(kwargs["rows"]))
    for _, _, trace in cases_of(shards.broadcast_state):
        for found in trace["the model"]:
            assert found["steps"].item() == 100 + 10 * list(found).index("steps") + 2**24 + 1
            assert found["layer.weight"].flatten()[:2].tolist() == [100.0, 101.0]


def test_accumulated_steps_are_those_of_one_process():
    for n, kwargs, trace in cases_of(gradients.accumulate):
        model = build(gradients.CONFIG, seed=3, dtype=torch.float64)
        batches = [one for r in range(n) for one in gradients.micro_batches(r, kwargs["micros"], 0)]
        loss = sum(loss_sum(model(one.tokens), one.targets)[0] for one in batches)
        (loss / sum(one.counted() for one in batches)).backward()
        right = torch.cat([p.grad.flatten() for p in model.parameters()])
        for rank in range(n):
            close(trace["the gradient of step 1"][rank], right)


def test_buckets_bring_the_means():
    for n, _, trace in cases_of(gradients.reduce_in_buckets):
        torch.manual_seed(7)
        model = gradients.Net().double()
        for rank in range(n):
            gradients.loss_of(model, rank, 1).backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                for rank in range(n):
                    close(trace["`.grad` after step 2"][rank][name], parameter.grad / n)


def test_a_cache_changes_no_number():
    ((_, (xs, weights)),) = cache.cached_attention.cases()
    found = [v for k, v in cache.call_all(cache.attend, xs, weights).items() if k != cache.KEPT]
    (whole, _) = cache.call_all(cache.attend, [torch.cat(xs, 1)], weights).values()
    close(torch.cat(found, 1), whole)


def test_blocks_are_counted_and_free_once():
    def lists(*arguments):
        answer = serving.right_allocator(*arguments)
        return answer and [*answer]

    for _, (blocks, script) in serving.SCRIPTS:
        trace = serving.operate(serving.right_allocator, blocks, script)
        assert serving.operate(lists, blocks, script) == trace
        for one in {facet.rsplit(": ", 1)[0] for facet in trace}:
            parts = ("tables", "free blocks", "references", "lengths")
            state = {part: trace[f"{one}: {part}"] for part in parts}
            owned = [block for table in state["tables"].values() for block in table]
            free = [block for block in state["free blocks"] if block >= 0]
            assert state["references"] == {b: owned.count(b) for b in state["references"]}
            assert sorted({*owned, *free}) == sorted(state["references"])
            assert not {*owned} & {*free}
            for name, length in state["lengths"].items():
                assert len(state["tables"][name]) == -(-length // serving.SIZE)


def sends(*sizes):
    return {"calls": [[Call("send", 1, size, size) for size in sizes]]}


LIMITS = (  # a judge, a trace with so much of what it limits, the reference's, ranks, case, limit
    (layers.judge_messages, lambda x: {"messages": [[("", x)]]}, {}, 1, {"sizes": [9]}, 480),
    (layers.judge_messages, lambda n: {"messages": [[("", 8)] * n]}, {}, 1, {"sizes": [9]}, 5),
    (block.judge_sent, lambda x: {"messages": [[("", x)]]}, {"messages": [[("", 72)]]}, 1, {}, 72),
    (
        sharded.judge_costs,
        lambda x: {"state": [x], "optimizers": [1]},
        {"state": [64]},
        1,
        {"optimizer": "Adam"},
        88,
    ),
    (
        sharded.judge_costs,
        lambda x: {"state": [0, 0], "optimizers": [1, 1], "all-reduced": [0, x]},
        {"state": [0, 0]},
        2,
        {},
        64,
    ),
    (files.judge_reads, lambda n: {"rows read": [n]}, {"rows read": [3]}, 1, {}, 3),
    (week10.judge_sizes, sends, {}, 3, {"parts": [9, 0, 0]}, 64),
    (week10.judge_sizes, lambda x: sends(-x), {}, 3, {"parts": [9, 1, 0]}, -16),  # at least 16
    (week11b.judge_calls, lambda n: {"messages": [[()] * n]}, {}, 1, {}, 1),
    (week12.few_messages, sends, {}, 3, {"tokens": 4}, 128),
    (week12.few_messages, lambda n: sends(*[1] * n), {}, 3, {"tokens": 4}, 2),
    (week12b.few_rows, sends, sends(1000), 1, {}, 2012),
    (week14b.cheap_enough, lambda percent: {"cost": percent / 100}, {}, 1, {}, 125),
)


@pytest.mark.parametrize(("judge", "trace", "right", "ranks", "case", "limit"), LIMITS)
def test_a_judge_allows_so_much_and_no_more(judge, trace, right, ranks, case, limit):
    judge(trace(limit), right, ranks, case)
    with pytest.raises(NotRight):
        judge(trace(limit + 1), right, ranks, case)

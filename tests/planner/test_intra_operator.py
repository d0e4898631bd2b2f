"""The intra-operator plan: brute force, and the optima that Alpa's own tests expect."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.bamba import bamba
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings, Mamba2Settings
from helpers.planner.intra_operator import as_problem, intra_operator
from helpers.planner.operators import operators
from helpers.planner.problem import NoPlan
from helpers.planner.strategies import KINDS, ROLES, Grid, Operator, resharding, strategies
from helpers.plans.messages import Message
from helpers.simulate.topology import Link

WITHOUT_ZERO = set(ROLES) - {"sharded"}
PLAIN = {"a": WITHOUT_ZERO, "b": WITHOUT_ZERO}
BATCH_FIRST = {"a": {"batch"}, "b": WITHOUT_ZERO}  # as Alpa does on two axes
NUMBER = 4


def grid(shape, alpha=(1, 1), beta=(1, 1)):
    links = [Link(alpha=a, bytes_per_second=1 / b) for a, b in zip(alpha, beta, strict=True)]
    return Grid(
        sizes=dict(zip("ab", shape, strict=True)), links=dict(zip("ab", links, strict=True))
    )


def all_reduce(on, size, axis):
    """Alpa's `all_reduce_cost`: alpha + 2 beta (n - 1) / n bytes. It adds 0.01 to break ties."""
    n, link = on.sizes[axis], on.links[axis]
    return link.alpha + 2 * (n - 1) / n * size / link.bytes_per_second


def mlp(layers, batch, width):
    return [
        Operator(name=f"{k}", kind="linear", inputs=(k - 1,) if k else (), sequences=batch,
                 tokens=1, width_in=width, width_out=width, parameters=((width * width, "w"),))
        for k in range(layers)
    ]  # fmt: skip


def bert(layers, batch, tokens, width, heads=8):
    """BERT's layers, with norms after the sums; the first input is data."""
    found = []

    def add(kind, *inputs, fan_in=width, fan_out=width, **more):
        found.append(Operator(
            name=f"{len(found)}", kind=kind, inputs=inputs, sequences=batch, tokens=tokens,
            width_in=fan_in, width_out=fan_out, **more))  # fmt: skip
        return len(found) - 1

    def linear(*inputs, fan_in=width, fan_out=width):
        return add("linear", *inputs, fan_in=fan_in, fan_out=fan_out,
                   parameters=((fan_in * fan_out, "w"), (fan_out, "v")))  # fmt: skip

    def norm(x):
        return add("norm", x, parameters=((width, "v"),) * 2)

    x = ()
    for _ in range(layers):
        made = linear(*x, fan_out=3 * width)
        mixed = add("heads", made, fan_in=3 * width, units_in=heads, units_out=heads)
        x = norm(add("pointwise", *x, linear(mixed)))
        down = linear(linear(x, fan_out=4 * width), fan_in=4 * width)
        x = (norm(add("pointwise", x, down)),)
    return found


def gradients(layers, on, axis, cut=1):
    """All-reduces of all parameters, one for each, over an axis; cut over the other axis."""
    sizes = [numbers * NUMBER / cut for one in layers for numbers, _ in one.parameters]
    return sum(all_reduce(on, size, axis) for size in sizes)


@pytest.mark.parametrize(("shape", "axis"), [((4, 1), "a"), ((1, 4), "b")])
def test_one_axis_as_in_alpa_s_tests(shape, axis):
    """playground/auto_sharding_solver/test_solver_mlp.py, tests/shard_parallel/test_bert.py."""
    on = grid(shape)
    for layers in (2, 6, 12):
        wide = intra_operator(mlp(layers, 128, 1024), on, number_bytes=NUMBER, allowed=PLAIN)
        one = all_reduce(on, 128 * 1024 * NUMBER, axis)
        assert wide.seconds == pytest.approx((layers - 1) * one)
        assert list(wide.roles.values()) == ["column", "row"] * (layers // 2)
        long = intra_operator(mlp(layers, 1024, 128), on, number_bytes=NUMBER, allowed=PLAIN)
        assert long.seconds == pytest.approx(gradients(mlp(layers, 1024, 128), on, axis))
        assert set(long.roles.values()) == {"batch"}
    wide = intra_operator(bert(2, 8, 8, 128), on, number_bytes=NUMBER, allowed=PLAIN)
    one = all_reduce(on, 8 * 8 * 128 * NUMBER, axis)
    assert wide.seconds == pytest.approx((2 * 4 - 1) * one)
    long = bert(2, 64, 64, 32)
    found = intra_operator(long, on, number_bytes=NUMBER, allowed=PLAIN)
    assert found.seconds == pytest.approx(gradients(long, on, axis))


@pytest.mark.parametrize("shape", [(4, 8), (8, 4), (3, 4), (2, 2)])
@pytest.mark.parametrize("layers", [2, 4, 6])
def test_a_mlp_on_two_axes_as_in_alpa_s_tests(shape, layers):
    """Data parallel along the slow axis, Megatron's cuts along the fast one."""
    on, batch = grid(shape, beta=(1, 0.01)), 1024 // shape[0] * shape[0]
    found = intra_operator(mlp(layers, batch, 128), on, number_bytes=NUMBER, allowed=PLAIN)
    activations = all_reduce(on, batch * 128 * NUMBER / shape[0], "b")
    expected = gradients(mlp(layers, batch, 128), on, "a", shape[1]) + (layers - 1) * activations
    if shape != (2, 2):  # there, the batch along both axes costs less
        assert found.seconds == pytest.approx(expected)
        assert list(found.roles.values()) == ["batch column", "batch row"] * (layers // 2)
    assert found.seconds <= expected * (1 + 1e-9)


def test_bert_and_a_tied_embedding_on_two_axes_as_in_alpa_s_tests():
    on, layers = grid((2, 2), (2, 2), (1, 0.1)), bert(2, 8, 8, 128)
    found = intra_operator(layers, on, number_bytes=NUMBER, allowed=BATCH_FIRST)
    expected = gradients(layers, on, "a", 2) + 7 * all_reduce(on, 8 * 8 * 128 * NUMBER / 2, "b")
    assert found.seconds == pytest.approx(expected, rel=0.01)  # Alpa's own tolerance
    free = intra_operator(layers, on, number_bytes=NUMBER, allowed=PLAIN)
    assert free.seconds < found.seconds / 4  # so much costs the rule that the batch comes first

    on, rows = grid((2, 2)), 8 * 8 * NUMBER / 2
    both = operators(GPTConfig(vocab=1024, width=8), 8, 8, ())
    ends = [both[0], replace(both[2], inputs=(0,))]  # without the norm
    found = intra_operator(ends, on, number_bytes=NUMBER, allowed=BATCH_FIRST)
    expected = gradients(ends[:1], on, "a", 2) + 2 * all_reduce(on, rows * 8, "b")
    assert found.seconds == pytest.approx(expected + 2 * all_reduce(on, rows, "b"))
    assert found.roles == {"embedding": "batch row", "head": "batch column"}


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize(("role", "once"), [("batch", True), ("sharded", False)])
def test_gradients_are_summed_once_a_step_and_shards_with_each_micro_batch(
    role, once, micro_batches
):
    """Two gathers and a reduce-scatter are three calls, and three times half of an all-reduce."""
    on, (one,) = grid((4, 1), alpha=(1000, 0)), mlp(1, 8, 16)
    found = intra_operator(
        [one], on, number_bytes=NUMBER, micro_batches=micro_batches, allowed={"a": {role}}
    )
    sums, calls = all_reduce(on, 16 * 16 * NUMBER, "a") - 1000, 1 if once else 3
    expected = 1000 * calls + sums * (1 if once else 1.5)
    assert found.seconds == pytest.approx(expected / (micro_batches if once else 1))
    assert found.states == 16 * 16 * 16 / (1 if once else 4)
    with pytest.raises(NoPlan):  # 6 sequences do not divide over 4
        intra_operator([replace(one, sequences=6)], on, allowed={"a": {role}})


@st.composite
def graphs(draw):
    """Up to 12 operators that take one or two earlier ones; on one axis, or a few on two."""
    shape = draw(st.sampled_from([(2, 1), (4, 1), (1, 4), (2, 2)]))
    count, found = draw(st.integers(1, 5 if min(shape) > 1 else 12)), []
    for k in range(count):
        kind = draw(st.sampled_from(sorted(KINDS)))
        most = 2 if kind == "pointwise" else 1
        inputs = draw(st.lists(st.integers(0, k - 1), max_size=most, unique=True)) if k else []
        wide = draw(st.sampled_from([4, 6, 8]))
        weights = ((8 * wide, "w"), (wide, "v")) if kind == "linear" else ()
        found.append(Operator(
            name=f"{k}", kind=kind, inputs=tuple(inputs), tokens=2,
            sequences=draw(st.sampled_from([3, 4, 8])), width_in=8, width_out=wide,
            parameters=weights))  # fmt: skip
    return found, grid(shape, (1, 3), (1, 0.1))


@given(graphs(), st.sampled_from([None, 0.3, 0.6]))
@settings(deadline=None, max_examples=40)
def test_the_plan_is_the_best_of_all(graph, share):
    layers, on = graph
    choices = [strategies(one, on) for one in layers]
    largest = sum(max((w.states + w.kept for w in ways), default=0) for ways in choices)
    memory = None if share is None else share * largest
    problem = replace(as_problem(layers, choices, on), limit=memory)
    total = by_force(problem)
    try:
        found = intra_operator(layers, on, memory=memory)
    except NoPlan:
        assert total == float("inf")
        return
    assert found.seconds == pytest.approx(total, rel=1e-9, abs=1e-9)
    assert memory is None or found.states + found.kept <= memory * (1 + 1e-9)


def by_force(problem):
    """The least cost by a table of all choices: an axis for each node."""
    import numpy as np

    count = len(problem.costs)
    cost, used = np.zeros(()), np.zeros(())
    shape = [len(one) for one in problem.costs]
    if not all(shape):
        return float("inf")

    def along(values, *nodes):
        """The array with an axis for each node."""
        table = np.array(values, dtype=float).reshape([shape[node] for node in nodes])
        order = np.argsort(nodes)
        sizes = [shape[node] if node in nodes else 1 for node in range(count)]
        return table.transpose(order).reshape(sizes)

    for node in range(count):
        cost = cost + along(problem.costs[node], node)
        used = used + along(problem.usages[node], node)
    for nodes, values in problem.edges:
        cost = cost + along(values, *nodes)
    fits = used <= (problem.limit if problem.limit is not None else np.inf)
    return cost[fits].min() if fits.any() else float("inf")


GIVEN = ["batch", "width", "whole"]


@pytest.mark.parametrize(("given", "taken"), list(itertools.product(GIVEN, repeat=2)))
def test_resharding_costs_a_gather_or_an_exchange(given, taken):
    """Alpa's table 2: a slice is free, S to R is an all-gather, S to S an all-to-all."""
    on, size = grid((4, 2)), 800.0
    found = resharding(size, {"a": given, "b": "batch"}, {"a": taken, "b": "batch"}, on)
    told = [(one.call, one.payload, one.times) for one in found]
    if given == taken:
        assert told == []
    elif "whole" in (given, taken):  # once: forward, or back for the gradient
        assert told == [("all_gather", size / 2, 1)]
    else:
        assert told == [("all_to_all", size / 2 / 4, 2)]
    assert {one.axis for one in found} <= {"a"}


def test_a_block_of_a_gpt_is_cut_like_megatron_s_and_less_memory_costs_time():
    config = GPTConfig(width=512, heads=8, layers=2, vocab=1000, mlp="gelu", norm="layer")
    blocks = operators(config, 4, 32, range(2), first=False, last=False)
    on = grid((1, 4), (1e-5, 1e-5), (1e-9, 1e-9))
    free = intra_operator(blocks, on)
    assert [free.roles[f"0.{name}"] for name in ("in", "mixer", "out", "up", "down")] == [
        "column", "width", "row", "column", "row"]  # fmt: skip
    one = Message(axis="b", call="all_reduce", payload=4 * 32 * 512 * 2, ranks=4)
    assert free.seconds == pytest.approx(8 * on.seconds(one))
    least = intra_operator(blocks, on, memory=0.96 * (free.states + free.kept))
    assert least.seconds > free.seconds
    for share in (0, 0.1):
        with pytest.raises(NoPlan):
            intra_operator(blocks, on, memory=share * (free.states + free.kept))


@pytest.mark.parametrize("tokens", [32, 512])  # part of a chunk of the scan; whole chunks
@pytest.mark.parametrize("changes", [{}, {"head": 64}, {"mamba2": Mamba2Settings(groups=2)}])
def test_a_bamba_s_operators_have_its_parameters_and_work(tokens, changes):
    from helpers.models.counts import flops_per_token, parameters

    sizes = {"width": 256, "heads": 8, "kv_heads": 4, "hidden": 512, "vocab": 500}
    config = bamba(4, attention=(2,), **sizes, **changes)
    found = operators(config, 3, tokens, range(4))
    numbers = sum(count for one in found for count, _ in one.parameters)
    assert numbers == pytest.approx(parameters(config).total, rel=0.01)  # not the convolutions
    work = sum(one.flops for one in found) / 3 / tokens
    assert work == pytest.approx(flops_per_token(config, tokens, part="forward"))


def test_other_mixers_have_no_operators():
    with pytest.raises(ValueError, match="mamba"):
        operators(GPTConfig(mixer="mamba"), 1, 8, range(1))
    with pytest.raises(ValueError, match="experts"):
        operators(GPTConfig(experts=ExpertSettings(count=4)), 1, 8, range(1))

"""Which axis goes where: the solution passes, each mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week05 import axes as axes_exercise
from helpers.comm.mesh import Layout
from notebooks.solutions import week05
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew
from tests.check.told import said


def stub(*args):
    raise NotImplementedError


def test_the_solution_passes_and_the_stub_is_told_apart():
    verdict = check.place_axes(week05.place_axes)
    assert verdict, verdict
    assert check.place_axes(stub).status == "not written yet"


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.place_axes, week05.place_axes))


def axes(**change):
    """The solution, with some sizes or the order changed: name -> new size from (tp, pp, dp)."""

    def solve(nodes, gpus, heads, layers, state, memory):
        right = week05.place_axes(nodes, gpus, heads, layers, state, memory)
        sizes = {axis: right.size(axis) for axis in right.axes}
        sizes |= {axis: new(sizes, nodes, gpus) for axis, new in change.items()}
        return Layout(**sizes)

    return solve


def tp_outside(nodes, gpus, heads, layers, state, memory):
    right = week05.place_axes(nodes, gpus, heads, layers, state, memory)
    return Layout(tp=right.size("tp"), pp=right.size("pp"), dp=right.size("dp"))


def all_tensor(nodes, gpus, *_):
    return Layout(pp=1, dp=1, tp=nodes * gpus)


def three_of_four(nodes, gpus, *model):
    """The first group is inside a node, the second one is not."""
    if gpus != 4:
        return week05.place_axes(nodes, gpus, *model)
    return Layout(pp=1, dp=nodes * gpus // 3, tp=3)


def only_pipeline(nodes, gpus, heads, layers, state, memory):
    """The fewest stages that fit, and no tensor parallelism."""
    for pp in range(1, layers + 1):
        if layers % pp == nodes * gpus % pp == 0 and state <= pp * memory:
            return Layout(pp=pp, dp=nodes * gpus // pp, tp=1)
    return week05.place_axes(nodes, gpus, heads, layers, state, memory)


def node_first(nodes, gpus, heads, layers, state, memory):
    """A node of tensor parallelism, whatever the model needs."""
    return Layout(pp=1, dp=nodes, tp=gpus)


def ignoring(heads=None, layers=None):
    def solve(nodes, gpus, real_heads, real_layers, state, memory):
        return week05.place_axes(
            nodes, gpus, heads or real_heads, layers or real_layers, state, memory
        )

    return solve


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda *_: (1, 2, 8), "Return a Layout"),
        (lambda *_: Layout(dp=16), "Name the three axes"),
        (axes(dp=lambda s, n, g: 1), "what is left of the GPUs"),
        (lambda n, g, *_: Layout(pp=1, dp=n * g, tp=1), "Which two axes split"),
        (all_tensor, "On which links"),
        (tp_outside, "A Layout's last axis"),
        (three_of_four, "On which links"),
        (node_first, "no further than its memory"),
        (node_first, "1 GPU is enough"),
        (only_pipeline, "Which axis splits the model first"),
        (ignoring(heads=64), "whole heads"),
        (ignoring(layers=24), "Equal stages"),
    ],
)
def test_place_axes(mistake, hint):
    said(check.place_axes(mistake), hint)


def test_pp_and_dp_may_be_in_any_order():
    def solve(*cluster):
        right = week05.place_axes(*cluster)
        return Layout(dp=right.size("dp"), pp=right.size("pp"), tp=right.size("tp"))

    assert check.place_axes(solve)


def test_a_wrong_layout_in_one_case_alone_is_found():
    def without_tensors(nodes, gpus, *_):
        return Layout(pp=1, dp=nodes * gpus // 2, tp=2)

    found = found_alone(check.place_axes, week05.place_axes, without_tensors)
    assert found == [
        "a model that fits into one GPU: 2 nodes of 8 GPUs; you said Layout(pp=1, dp=8, tp=2): "
        "it fits, but 1 GPU is enough for one model",
        "a model that fits into a node: 4 nodes of 8 GPUs; you said Layout(pp=1, dp=16, tp=2): "
        "100e9 bytes of states on a GPU that has 60e9 for them",
        "a model of three nodes' memory: 16 nodes of 8 GPUs; you said Layout(pp=1, dp=64, tp=2): "
        "700e9 bytes of states on a GPU that has 60e9 for them",
        "6 heads in nodes of 8 GPUs: 4 nodes of 8 GPUs; you said Layout(pp=1, dp=16, tp=2): "
        "150e9 bytes of states on a GPU that has 60e9 for them",
        "8 layers in nodes of 4 GPUs: 12 nodes of 4 GPUs; you said Layout(pp=1, dp=24, tp=2): "
        "350e9 bytes of states on a GPU that has 60e9 for them",
    ]


CLUSTER = (4, 8, 12, 6, 130, 10)  # 13 GPUs' memory: 4 ranks of tp and 6 of pp would do


def refused(layout, *cluster):
    with pytest.raises(NotRight) as wrong:
        axes_exercise.judge_axes(layout, *(cluster or CLUSTER))
    return wrong.value


def test_the_best_layout_by_hand():
    """tp divides 8 and 12: 1, 2 or 4; pp divides 6, and both divide 32: 1 or 2 …"""
    assert sorted(axes_exercise.candidates(4, 8, 12, 6, 30, 10)) == [(2, 2), (4, 1), (4, 2)]
    assert axes_exercise.best(4, 8, 12, 6, 30, 10) == (4, 1)
    assert axes_exercise.best(4, 8, 12, 6, 10, 10) == (1, 1)
    assert axes_exercise.best(4, 8, 12, 6, 20, 10) == (2, 1)
    assert axes_exercise.best(2, 8, 3, 4, 40, 10) == (1, 4)
    assert (4, 2) in axes_exercise.candidates(4, 8, 12, 6, 80, 10)  # exactly full
    assert not list(axes_exercise.candidates(4, 8, 12, 6, 81, 10))


def test_what_is_wrong_with_a_layout():
    small = (4, 8, 12, 6, 30, 10)
    axes_exercise.judge_axes(Layout(pp=1, dp=8, tp=4), *small)
    axes_exercise.judge_axes(Layout(dp=8, pp=1, tp=4), *small)
    assert "16 ranks on 32 GPUs" in refused(Layout(pp=1, dp=4, tp=4), *small).finding
    assert "64 ranks on 32 GPUs" in refused(Layout(pp=1, dp=16, tp=4), *small).finding
    wrong = refused(Layout(tp=4, pp=1, dp=8), *small)
    assert "the tensor-parallel group [0, 8, 16, 24] is on several nodes" in wrong.finding
    assert "A Layout's last axis" in wrong.hint
    wrong = refused(Layout(pp=1, dp=2, tp=16), *small)
    assert "On which links" in wrong.hint
    wrong = refused(Layout(tp=16, pp=1, dp=2), *small)
    assert "On which links" in wrong.hint
    wrong = refused(Layout(pp=1, dp=4, tp=8), *small)
    assert wrong.finding.endswith(", with 12 heads")
    wrong = refused(Layout(pp=4, dp=8, tp=1), *small)
    assert wrong.finding.endswith(", with 6 layers")
    wrong = refused(Layout(pp=2, dp=16, tp=1), *small)
    assert wrong.finding.endswith(": 1.5e-08e9 bytes of states on a GPU that has 1e-08e9 for them")
    wrong = refused(Layout(pp=2, dp=4, tp=4), *small)
    assert wrong.finding.endswith("it fits, but 4 GPUs are enough for one model")
    wrong = refused(Layout(pp=2, dp=8, tp=2), *small)
    assert wrong.finding.endswith("it fits, but it has more stages than it needs")


def test_a_group_that_crosses_a_node():
    assert axes_exercise.crosses(Layout(dp=4, tp=2), 4) is None
    assert axes_exercise.crosses(Layout(dp=4, tp=3), 4) == [3, 4, 5]
    assert axes_exercise.crosses(Layout(tp=2, dp=4), 4) == [0, 4]


def test_clusters_that_grading_draws_have_a_layout():
    for secret in range(40):
        _, cluster = axes_exercise.drawn(random.Random(secret))
        tp, pp = axes_exercise.best(*cluster)
        assert tp * pp > cluster[4] / cluster[5] >= 0.1 * cluster[0] * 8

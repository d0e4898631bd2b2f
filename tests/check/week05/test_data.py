"""The exercises that need no ranks: the solution passes, each mistake gets its own hint."""

import random
from fractions import Fraction

import pytest

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week05 import axes as axes_exercise
from helpers.check.week05.share import drawn as draw_share
from helpers.check.week05.share import hint_share
from helpers.comm.mesh import Layout
from notebooks.solutions import week05
from tests.check.alone import found_alone, names
from tests.check.asked import asked, drawn_anew

DATA = ("bubble_share", "place_axes")


def stub(*args):
    raise NotImplementedError


@pytest.mark.parametrize("name", DATA)
def test_the_solution_passes_and_the_stub_is_told_apart(name):
    verdict = getattr(check, name)(getattr(week05, name))
    assert verdict, verdict
    assert getattr(check, name)(stub).status == "not written yet"


@pytest.mark.parametrize("name", DATA)
def test_grading_draws_other_inputs(name):
    assert drawn_anew(lambda: asked(getattr(check, name), getattr(week05, name)))


def told(verdict, hint):
    assert verdict.status == "wrong", verdict
    assert hint in f"{verdict.finding} {verdict.hint}", verdict


# ---------------------------------------------------------------------- bubble_share


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda p, m, v: (p - 1) / (v * m), "over *work*"),
        (lambda p, m, v: (p - 1) / m, "over *work*"),
        (lambda p, m, v: p / (m + p), "Draw 2 ranks"),
        (lambda p, m, v: (p - 1) / (m + p), "work and idle time: add"),
        (lambda p, m, v: (p - 1) / (m + p - 1), "v times smaller"),
        (lambda p, m, v: (p - 1) / (m + p - 1) / v, "Divide first"),
        (lambda p, m, v: v * (p - 1) / (m + v * (p - 1)), "Upside down"),
        (lambda p, m, v: 1 - week05.bubble_share(p, m, v), "busy share"),
        (lambda p, m, v: 100 * week05.bubble_share(p, m, v), "percentage"),
        (lambda p, m, v: max(week05.bubble_share(p, m, v), 0.01), "One rank alone"),
        (lambda p, m, v: (p - 1) / v, "idle time, in units"),
        (lambda p, m, v: (p - 1) / (v * m - p + 1) if p < v * m else 0.9, "turn it round"),
        (lambda p, m, v: (p * v - 1) / (m + p * v - 1), "The share is the wait"),
        (lambda p, m, v: 0.5, "The share is the wait"),
        (lambda p, m, v: week05.bubble_share(p, m, v) * (1 + 1e-6), "The share is the wait"),
        (lambda p, m, v: week05.bubble_share(p, m, v) + (p > m) / 9, "The share is the wait"),
        (lambda p, m, v: "3/11", "one number"),
        (lambda p, m, v: True, "one number"),
    ],
)
def test_bubble_share(mistake, hint):
    told(check.bubble_share(mistake), hint)


# ------------------------------------------------------------------------ place_axes


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
    told(check.place_axes(mistake), hint)


def test_pp_and_dp_may_be_in_any_order():
    def solve(*cluster):
        right = week05.place_axes(*cluster)
        return Layout(dp=right.size("dp"), pp=right.size("pp"), tp=right.size("tp"))

    assert check.place_axes(solve)


def test_a_wrong_share_in_one_case_alone_is_found():
    """Off by 2e-9 is wrong; rounding is right."""

    def off(by):
        return lambda *sizes: week05.bubble_share(*sizes) * (1 + by) + (sizes[0] == 1) * by / 1e3

    sizes = [(4, 8, 1), (8, 32, 1), (4, 8, 2), (3, 6, 4), (2, 1, 1), (1, 4, 1), (5, 7, 1)]
    for by in (2e-9, -2e-9):
        found = found_alone(check.bubble_share, off(1e-10), off(by))
        assert names(found) == [
            f"{p} ranks, {m} micro-batches, {v} stage{'s' * (v > 1)} a rank" for p, m, v in sizes
        ]
        ends = ["3/11", "7/39", "3/19", "2/26", "1/2", "0/4", "4/11"]
        for finding, end in zip(found, ends, strict=True):
            share = float(Fraction(end))
            assert finding.endswith(f"the timeline idles {share:.6g} of the step")


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (3 / 14, "over *work*"),
        (14 / 17, "busy share"),
        (100 * 3 / 17, "not a percentage"),
        (4 / 11, "Draw 2 ranks"),
        (3 / 11, "work and idle time: add"),
        (3 / 28, "which idle units"),
        (3 / 10, "v times smaller"),
        (3 / 20, "Divide first"),
        (3 / 7, "v is missing"),
        (6 / 13, "Upside down"),
        (7 / 10, "busy share"),
        (3 / 2, "in units of a micro-batch"),
        (0.123, "The share is the wait"),
    ],
)
def test_the_hint_for_4_ranks_7_micro_batches_and_2_stages(answer, hint):
    assert hint in hint_share(answer * (1 + 5e-10), 3 / 17, 4, 7, 2)
    assert "The share is the wait" in hint_share(answer * (1 + 3e-9), 3 / 17, 4, 7, 2)


def test_the_share_that_was_turned_round_and_one_rank():
    assert "turn it round" in hint_share(2 / 5, 2 / 9, 3, 7, 1)
    assert "The share is the wait" in hint_share(9.0, 2 / 4, 3, 2, 1)  # v m = p - 1
    assert "One rank alone" in hint_share(0.2, 0.0, 1, 4, 1)


def test_schedules_that_grading_draws_can_be_interleaved():
    drawn = [draw_share(random.Random(secret)) for secret in range(60)]
    assert all(micros % ranks == 0 for ranks, micros, _ in drawn)
    assert {chunks for *_, chunks in drawn} == {1, 2, 3, 4}
    assert {ranks for ranks, *_ in drawn} == {2, 3, 4, 5, 6, 7}


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

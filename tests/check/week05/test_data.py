"""The exercises that need no ranks: the solution passes, each mistake gets its own hint."""

import pytest

from helpers import check
from helpers.comm.mesh import Layout
from notebooks.solutions import week05
from tests.check.asked import asked, drawn_anew

DATA = ("order_1f1b", "bubble_share", "place_axes")


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


# ------------------------------------------------------------------------ order_1f1b


def order(*, warm=lambda p, m, r: min(p - 1 - r, m), backward_first=False, rest=True, limit=True):
    """The solution, with one part of it changed."""

    def solve(p, m):
        rows = []
        for r in range(p):
            before = warm(p, m, r)
            row = [f"F{i}" for i in range(before)]
            for i in range(m if rest else m - before):
                pair = [f"F{before + i}"] if before + i < m or not limit else []
                pair.append(f"B{i}")
                row += pair[::-1] if backward_first else pair
            rows.append(row)
        return rows

    return solve


def by_gpipe(p, m):
    return [[f"{kind}{i}" for kind in "FB" for i in range(m)] for _ in range(p)]


def in_another_order(p, m):
    rows = week05.order_1f1b(p, m)
    rows[-1] = [f"{kind}{i}" for i in reversed(range(m)) for kind in "FB"]
    return rows


def changed(change):
    def solve(p, m):
        rows = week05.order_1f1b(p, m)
        change(rows)
        return rows

    return solve


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (order(warm=lambda p, m, r: max(min(p - 2 - r, m), 0)), "one forward short"),
        (order(warm=lambda p, m, r: 0), "One micro-batch at a time"),
        (order(warm=lambda p, m, r: max(min(p - 3 - r, m), 0)), "warm-up is too short"),
        (order(warm=lambda p, m, r: min(p - r, m)), "warm-up is too long"),
        (order(warm=lambda p, m, r: min(p - 1, m)), "same warm-up"),
        (order(warm=lambda p, m, r: min(r, m)), "Which rank needs the most forwards"),
        (order(warm=lambda p, m, r: p - 1 - r), "with so few micro-batches"),
        (order(limit=False), "At which number"),
        (order(rest=False), "left over at the end"),
        (order(backward_first=True), "before F"),
        (by_gpipe, "That is GPipe"),
        (in_another_order, "in a circle"),
        (changed(lambda rows: rows[0].insert(0, "F0")), "computed already"),
        (changed(lambda rows: rows[-1].remove("F1")), "Count the forwards"),
        (changed(lambda rows: rows[0].__setitem__(0, ("F", 0))), "A cell is a text"),
        (changed(lambda rows: rows[0].__setitem__(0, "W0")), "A cell is a text"),
        (changed(lambda rows: rows[0].__setitem__(0, "F--1")), "A cell is a text"),
        (changed(lambda rows: rows[0].__setitem__(0, "F0 B0")), "A cell is a text"),
        (changed(lambda rows: rows[0].__setitem__(0, "F-1")), "At which number"),
        (changed(lambda rows: rows[1].insert(0, ".")), "a rank that waits has no cell"),
        (changed(lambda rows: rows.reverse()), "Which rank needs the most forwards"),
        (changed(lambda rows: rows.pop()), "a list for each rank"),
        (changed(lambda rows: rows.__setitem__(0, "F0 B0")), "a list for each rank"),
        (lambda p, m: None, "a list for each rank"),
        (lambda p, m: [][1], "IndexError"),
    ],
)
def test_order_1f1b(mistake, hint):
    told(check.order_1f1b(mistake), hint)


def test_another_order_that_is_as_good_passes():
    """Backwards may be in tuples; what counts is the time and the memory."""
    assert check.order_1f1b(lambda p, m: tuple(map(tuple, week05.order_1f1b(p, m))))


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

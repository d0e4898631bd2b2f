"""Choices of strategies against brute force, and what reductions and files must not lose."""

import gzip
import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from helpers.planner import iopddl
from helpers.planner.ascent import ascend
from helpers.planner.problem import FORBIDDEN, NoPlan, Problem
from helpers.planner.program import best, program, too_much
from helpers.planner.reduce import Reduced
from helpers.planner.search import Search
from helpers.planner.solve import solve

# Apache-2.0, Google LLC: github.com/google/iopddl, benchmarks/asplos-2025-iopddl-G.json.gz
G = Path(__file__).parent / "published_iopddl_G.json.gz"


USAGE = st.sampled_from([0, 1, 2, 4, 8])


@st.composite
def problems(draw, most=6):
    """Small problems with everything that the contest's files may hold."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=most))
    cost = st.sampled_from([0, 0, 1, 2, 3, 5, 10, FORBIDDEN, 2 * FORBIDDEN])
    nodes = st.integers(0, len(sizes) - 1)
    ends = draw(st.lists(st.lists(nodes, min_size=1, max_size=2).map(tuple), max_size=10))

    def rows(element, counts):
        return [draw(st.lists(element, min_size=n, max_size=n)) for n in counts]

    pairs = [math.prod(sizes[node] for node in edge) for edge in ends]
    edges = list(zip(ends, rows(cost, pairs), strict=True))
    for edge, costs in edges:  # locks: each strategy of the last node allows one of the first
        if len(edge) == 2 and draw(st.booleans()):
            last = sizes[edge[1]]
            for place in range(last):
                one = draw(st.integers(0, sizes[edge[0]] - 1))
                for other in {*range(sizes[edge[0]])} - {one}:
                    costs[other * last + place] = FORBIDDEN
    usages, limit = rows(USAGE, sizes), draw(st.sampled_from([None, 0, 5, 9, 15, 20]))
    if draw(st.booleans()):  # more units than HiGHS tells apart: the last ones decide
        usages = [[2**40 * one + one % 3 for one in usage] for usage in usages]
        limit = limit and 2**40 * limit + draw(st.integers(0, 3))
    return Problem(
        costs=rows(cost, sizes),
        edges=edges,
        usages=usages,
        intervals=[sorted(draw(st.tuples(*[st.integers(0, 6)] * 2))) for _ in sizes],
        limit=limit,
    )


def by_force(problem):
    """The least cost of all choices; infinite if none holds."""
    every = itertools.product(*(range(len(costs)) for costs in problem.costs))
    return min((problem.cost(one) for one in every if problem.holds(one)), default=math.inf)


@given(problems())
@settings(deadline=None)
def test_the_optimum_is_that_of_all_choices(problem):
    try:
        found = solve(problem, 20)
    except NoPlan:
        assert by_force(problem) == math.inf
        return
    assert found.cost == found.bound == by_force(problem) == problem.cost(found.chosen)
    assert problem.holds(found.chosen)
    assert found.peak == problem.peak(found.chosen)


@given(problems())
@settings(deadline=None, max_examples=30)
def test_a_search_by_parts_repairs_and_improves(problem):
    """With parts of a single node's neighbourhood it ends in the optimum of small problems."""
    try:
        search = Search(Reduced(problem))
    except NoPlan:
        return
    if search.reduced.cost and by_force(problem) < math.inf:
        assert search.run(time.monotonic() + 0.2)
        chosen = search.reduced.whole(search.chosen)
        chosen = [chosen[node] for node in range(len(problem.costs))]
        assert problem.holds(chosen)
        assert problem.cost(chosen) == by_force(problem)


@given(problems())
@settings(deadline=None)
def test_moving_costs_gives_a_bound_and_the_optimum_of_a_tree(problem):
    """Without the limit; what is forbidden costs 99."""
    reduced = bare(replace(problem, limit=None))
    chosen, bound = ascend(reduced, 99.0, time.monotonic() + 1)
    every = itertools.product(*(range(len(costs)) for costs in problem.costs))
    least = min(priced(problem, one) for one in every)
    found = priced(problem, [chosen[node] for node in sorted(chosen)])
    assert bound <= least + 1e-9 <= found + 2e-9
    pairs = {frozenset(nodes) for nodes, _ in problem.edges if len({*nodes}) == 2}
    if len(pairs) < 2:  # a tree
        assert bound == pytest.approx(least) == pytest.approx(found)


SWAP, SAME = [FORBIDDEN, 0, 0, FORBIDDEN], [0, FORBIDDEN, FORBIDDEN, 0]


@pytest.mark.parametrize(
    ("problem", "chosen"),
    [
        (
            Problem(costs=[[0, 0], [0, 0], [0, 5]], edges=[((0, 1), SWAP), ((0, 2), [0, 9, 9, 1])]),
            [0, 1, 0],
        ),
        (
            Problem(
                costs=[[0, 1], [0, 0], [10, 0], [10, 1, 0]],
                edges=[((0, 1), SAME)],
                usages=[[1, 5], [5, 1], [1, 3], [1, 2, 3]],
                intervals=[(0, 1), (1, 2), (1, 2), (0, 1)],
                limit=7,
            ),
            [1, 1, 1, 1],
        ),
    ],
)
def test_a_node_that_follows_brings_its_edges_and_its_memory(problem, chosen):
    found = solve(problem)
    assert found.chosen == chosen
    assert found.cost == found.bound == problem.cost(chosen) == by_force(problem)


USAGES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 8), min_size=1, max_size=3),
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted),
    ),
    min_size=1,
    max_size=7,
)


# More room at the next time; each of two times implies the other; less room at the time before.
ROOMS = [
    ([([8], [0, 1]), ([1, 8], [4, 6]), ([6, 0, 4], [0, 6]), ([5, 3], [0, 5]), ([3], [3, 8])], 17),
    ([([8, 6, 0], [6, 7]), ([6], [0, 7]), ([6, 5, 5], [5, 7]), ([4, 6, 2], [2, 9])], 17),
    ([([6, 0], [1, 4]), ([8, 7], [1, 5]), ([4, 7], [7, 8]), ([3, 8], [1, 5]), ([4], [5, 6]),
      ([1], [3, 9]), ([4, 8, 2], [7, 8])], 19),
]  # fmt: skip


@example(*ROOMS[0])
@example(*ROOMS[1])
@example(*ROOMS[2])
@given(USAGES, st.integers(5, 30))
@settings(deadline=None)
def test_the_times_that_are_left_decide_whether_a_choice_fits(nodes, limit):
    usages, intervals = ([one[k] for one in nodes] for k in (0, 1))
    problem = Problem(
        costs=[[0] * len(usage) for usage in usages],
        usages=usages,
        intervals=intervals,
        limit=limit,
    )
    reduced = bare(problem)
    every = list(itertools.product(*(range(len(usage)) for usage in usages)))
    try:
        reduced.settle()
    except NoPlan:
        assert not any(problem.holds(one) for one in every)
        return
    for one in every:
        places = [np.flatnonzero(reduced.names[node] == k) for node, k in enumerate(one)]
        left = {node: int(place[0]) for node, place in enumerate(places) if len(place)}
        fits = len(left) == len(one) and bool((reduced.used(left) <= reduced.room).all())
        assert fits == problem.holds(one)


def bare(problem):
    """A Reduced to which no rule was applied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reduced, "shrink", lambda self: None)
        return Reduced(problem)


def priced(problem, chosen):
    parts = [costs[one] for costs, one in zip(problem.costs, chosen, strict=True)]
    tables = {}
    for nodes, costs in problem.edges:
        if len({*nodes}) == 1:
            place = chosen[nodes[0]] * (1 if len(nodes) == 1 else len(problem.costs[nodes[0]]) + 1)
            parts[nodes[0]] += costs[place]
        else:
            a, b = nodes
            pair = frozenset(nodes)
            tables[pair] = (
                tables.get(pair, 0) + costs[chosen[a] * len(problem.costs[b]) + chosen[b]]
            )
    return sum(min(part, 99) for part in [*parts, *tables.values()])


def chain(nodes, limit, seed=0, size=4, unit=1):
    """Nodes in a chain, with a second edge to the next but three, that live for three steps."""
    rng = np.random.default_rng(seed)
    pairs = [(n, n + k) for k in (1, 4) for n in range(nodes - k)]
    return Problem(
        costs=(unit * rng.integers(0, 50, (nodes, size))).tolist(),
        edges=[(pair, (unit * rng.integers(0, 99, size * size)).tolist()) for pair in pairs],
        usages=rng.integers(1, 9, (nodes, size)).tolist(),
        intervals=[(n, n + 3) for n in range(nodes)],
        limit=limit,
    )


def test_a_search_starts_over_the_limit_and_ends_near_the_optimum():
    problem = chain(60, limit=13)
    optimum = solve(problem, 60)
    assert optimum.cost == optimum.bound
    search = Search(Reduced(problem))
    assert (search.reduced.used(search.chosen) > search.reduced.room).any()
    assert not search.run(time.monotonic())
    search.run(time.monotonic() + 3)
    chosen = search.reduced.whole(search.chosen)
    chosen = [chosen[node] for node in range(60)]
    assert problem.holds(chosen)
    assert problem.cost(chosen) <= 1.1 * optimum.cost


@pytest.mark.parametrize(("weight", "chosen"), [(0.4, 0), (0.6, 1)])
def test_memory_has_a_price_where_others_exceed_the_limit(weight, chosen):
    """The second strategy costs 2 more, and uses 4 less. The two other nodes alone use too much."""
    nodes = {"costs": [[0, 2]] * 3, "usages": [[5, 1]] * 3, "intervals": [(0, 1)] * 3}
    reduced, now = Reduced(Problem(**nodes, limit=8)), dict.fromkeys(range(3), 0)
    with pytest.raises(NoPlan):
        reduced.around([0], now, math.inf)
    part = reduced.around([0], now, math.inf, {0: weight})
    assert part.whole(best(part, 9)[0]) == {0: chosen}


@pytest.mark.parametrize("unit", [1, 2**-30])  # whole numbers, and seconds
def test_bounds_hold_and_are_near_in_any_unit(unit):
    free, held = (chain(40, limit, unit=unit) for limit in (None, 13))
    reduced = bare(free)
    costs, rules, _, _ = program(reduced)
    relaxed = linprog(costs / unit, A_eq=rules.A, b_eq=rules.lb, bounds=(0, 1)).fun * unit
    bound = ascend(reduced, 1e9, time.monotonic() + 9)[1]
    assert 0.98 * relaxed < bound < 1.0001 * relaxed
    reduced = Reduced(held)
    assert reduced.constant + best(reduced, 60)[1] == pytest.approx(solve(held, 60).cost)


@pytest.mark.parametrize(
    ("usages", "limit", "loads", "most"),
    [
        ([[2**39 + 3 * 2**22, 2**22], [2**23, 0]], 2**39 + 2**20, [2**17 + 3, 1, 2, 0], 2**17),
        ([[2**20 - 1, 4], [9, 3]], 2**20 + 1, [2**18 - 1, 1, 2, 0], 2**18),
        ([[0.5, 0.25], [2**-19, 0]], 0.75, [2**18 - 1, 2**17 - 1, 0, 0], 3 * 2**17),
    ],
)
def test_the_program_counts_memory_in_whole_units_and_loses_no_choice_that_fits(
    usages, limit, loads, most
):
    nodes = {"costs": [[0, 1]] * 2, "usages": usages, "intervals": [(0, 1)] * 2}
    rules = program(bare(Problem(**nodes, limit=limit)))[1]
    assert rules.A.toarray()[-1].tolist() == loads
    assert rules.ub[-1] == most


@pytest.mark.parametrize(
    ("unit", "limit", "third", "cover"),
    [
        (1, 8, 0, {0: [True, False], 1: [True, False]}),
        (1, 8, 1, {1: [True, False], 2: [False, True]}),  # less fits at the second time
        (2**45, 9 * 2**45 - 1, 0, {0: [True, False], 1: [True, False]}),
        (2**45, 9 * 2**45, 0, {}),
        (0.1, 0.8999999999999999, 0, {}),  # 0.5 + 0.4, but for rounding
        (0.1, 0.8999999, 0, {0: [True, False], 1: [True, False]}),
    ],
)
def test_loads_that_are_too_much_together(unit, limit, third, cover):
    usages = [[5, 1], [4, 0], [2, 9], [8, 0], [0, 7]]
    reduced = bare(
        Problem(
            costs=[[0, 1]] * 5,
            usages=[[unit * one for one in usage] for usage in usages],
            intervals=[(0, 1), (0, 2), (1, 2), (2, 3), (0, 3)],
            limit=limit,
        )
    )
    found = too_much(reduced, {0: 0, 1: 0, 2: third, 3: 0, 4: 0})
    assert {node: heavy.tolist() for node, heavy in found.items()} == cover


@pytest.mark.parametrize(
    ("unit", "noise", "seed"), [(2**40, 3, 2), (1, 2**40, 1), (2**30, 2**20, 27), (2**24, 2, 13)]
)
def test_loads_that_meet_the_limit_by_their_last_unit(unit, noise, seed):
    rng = np.random.default_rng(seed)
    shape = 7, 3
    problem = Problem(
        usages=(unit * rng.integers(1, 9, shape) + rng.integers(0, noise, shape)).tolist(),
        costs=rng.integers(0, 50, shape).tolist(),
        edges=[((n, n + 1), rng.integers(0, 30, 9).tolist()) for n in range(6)],
        intervals=[(0, 1)] * 7,
    )
    peaks = sorted(problem.peak(one) for one in itertools.product(range(3), repeat=7))
    problem = replace(problem, limit=peaks[200])
    found = solve(problem, 20)
    assert found.cost == found.bound == by_force(problem)
    reduced = bare(problem)
    places, bound = best(reduced, 0.0)  # the first choice, even if it misses the limit
    assert bound <= found.cost
    assert (reduced.used(places) > reduced.room).any() == (unit > 1)


def test_the_parts_of_a_search_that_repairs_nothing_do_not_grow_for_ever(monkeypatch):
    search, sizes = Search(bare(chain(6, limit=3))), []
    monkeypatch.setattr(search, "near", lambda seed, size: sizes.append(size) or [seed])
    monkeypatch.setattr(search, "improve", lambda *_: None)
    assert not search.run(time.monotonic() + 0.3)
    assert len(sizes) > 60  # by three tenths each time: 300 * 1.3**60 is 2e9
    assert max(sizes) == 10**6


def test_without_time_the_best_choice_comes_with_a_bound(monkeypatch):
    monkeypatch.setattr("helpers.planner.solve.LARGE", 0)  # a program too large to solve at once
    problem = chain(40, limit=13)
    problem = replace(problem, costs=[*problem.costs, [10**5]], usages=[*problem.usages, [0]],
                      intervals=[*problem.intervals, (0, 0)])  # fmt: skip
    found = solve(problem, 2)
    assert problem.holds(found.chosen)
    # each node's least cost, beside those of its edges, would give a bound of 2,152 in all
    assert 2500 < found.bound - 10**5 <= found.cost - 10**5


@pytest.mark.parametrize(
    ("problem", "chosen"),
    [
        (Problem(costs=[]), []),
        (Problem(costs=[[3, 1, 2]]), [1]),
        (Problem(costs=[[3, 1, 2]], usages=[[1, 5, 2]], intervals=[(0, 1)], limit=4), [2]),
        (Problem(costs=[[3, 1, 2]], usages=[[1, 5, 2]], intervals=[(4, 4)], limit=0), [1]),
        (Problem(costs=[[0.5, 0.25], [0]], edges=[((0, 1), [0.125, 1.5])]), [0, 0]),
        (Problem(costs=[[0, 0]], edges=[((0, 0), [4, 9, 9, 3])]), [1]),
        (Problem(costs=[[0, 0]], edges=[((0,), [4, 3]), ((0,), [0, 2])]), [0]),
        (Problem(costs=[[0, 0], [0, 0]], edges=[((1, 0), [5, 5, math.inf, 1])]), [1, 1]),
    ],
)  # fmt: skip
def test_odd_problems(problem, chosen):
    found = solve(problem)
    assert found.chosen == chosen
    assert found.cost == found.bound == problem.cost(chosen)
    assert found.peak == (2 if problem.limit == 4 else 0)


@pytest.mark.parametrize(
    ("costs", "edge", "whole"),
    [([1, 2], [3, 4], True), ([1, 2.5], [3, 4], False), ([1, 2], [0.5, 4], False)],
)
def test_a_bound_is_rounded_up_only_where_all_costs_are_whole(costs, edge, whole):
    assert Problem(costs=[costs], edges=[((0,), edge)]).whole == whole


@pytest.mark.parametrize(
    "problem",
    [
        Problem(costs=[[1], []]),
        Problem(costs=[[FORBIDDEN, math.inf]]),
        Problem(costs=[[0], [0]], edges=[((0, 1), [FORBIDDEN])]),
        Problem(costs=[[0], [0]], usages=[[3], [3]], intervals=[(0, 2), (1, 3)], limit=5),
    ],
)
def test_no_plan_is_said(problem):
    with pytest.raises(NoPlan):
        solve(problem)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"costs": [[1]], "usages": [[1, 2]], "intervals": [(0, 1)]}, "needs 1 usages"),
        ({"costs": [[1]], "usages": [[-1]], "intervals": [(0, 1)]}, "each 0 or more"),
        ({"costs": [[1]], "usages": [[math.inf]], "intervals": [(0, 1)]}, "each 0 or more"),
        ({"costs": [[1]], "usages": [[1]] * 2}, "2 usages for 1 nodes"),
        ({"costs": [[1]], "edges": [((0, 1), [1])]}, "known nodes"),
        ({"costs": [[1]] * 3, "edges": [((0, 1, 2), [1])]}, "one or two"),
        ({"costs": [[1, 2]], "edges": [((0,), [1])]}, "not one for each"),
        ({"costs": [[math.nan]]}, "a cost is a number"),
    ],
)
def test_what_is_no_problem_is_refused(fields, told):
    with pytest.raises(ValueError, match=told):
        Problem(**fields)


SMALL = {
    "nodes": {
        "costs": [[1, 5], [2, 3], [7]],
        "usages": [[4, 1], [4, 1], [1]],
        "intervals": [[0, 2], [1, 3], [0, 0]],
    },
    "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[0, 9, 9, 0], [1, FORBIDDEN]]},
    "usage_limit": 5,
}


def without(name):
    return {key: value for key, value in SMALL.items() if key != name}


@pytest.mark.parametrize(
    ("told", "code", "line", "chosen"),
    [
        ({"problem": SMALL}, 0, "cost 24 peak 5 limit 5 bound 24", [1, 0, 0]),
        (SMALL | {"usage_limit": 8}, 0, "cost 11 peak 8 limit 8 bound 11", [0, 0, 0]),
        (without("usage_limit"), 0, "cost 11 peak 8 limit inf bound 11", [0, 0, 0]),
        (without("edges"), 0, "cost 11 peak 5 limit 5 bound 11", [0, 1, 0]),
        (SMALL | {"usage_limit": 1}, 1, None, None),
    ],
)
def test_a_file_of_the_contest(told, code, line, chosen, tmp_path, capsys):
    for name, write in (("a.json", open), ("a.json.gz", gzip.open)):
        with write(tmp_path / name, "wt", encoding="utf-8") as file:
            json.dump(told, file)
        assert iopddl.main([str(tmp_path / name)]) == code
        out, err = capsys.readouterr()
        if code:
            assert err.startswith("infeasible: ")
            assert out == ""
        else:
            assert out == f"{line}\n{json.dumps(chosen)}\n"


def test_a_choice_is_not_found_in_no_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("helpers.planner.solve.LARGE", 0)
    (tmp_path / "a.json").write_text(json.dumps(SMALL))
    assert iopddl.main([str(tmp_path / "a.json"), "--seconds", "0"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "allow more time" in err


def test_a_file_that_is_no_problem(tmp_path, capsys):
    Path(tmp_path / "a.json").write_text("[1]")
    for name in ("a.json", "none.json"):
        with pytest.raises(SystemExit, match="2"):
            iopddl.main([str(tmp_path / name)])
        assert name in capsys.readouterr().err


def test_google_instance_g_is_proved_optimal(capsys):
    """Its optimum is 217,039. A choice that is carried back costs what the reduced problem says."""
    assert iopddl.main([str(G), "--seconds", "280"]) == 0
    line, chosen = capsys.readouterr().out.splitlines()
    problem, chosen = iopddl.read(G), json.loads(chosen)
    peak = problem.peak(chosen)
    assert line == f"cost 217039 peak {peak} limit {problem.limit} bound 217039"
    assert problem.cost(chosen) == 217_039
    assert peak <= problem.limit

    reduced = Reduced(problem)
    assert len(reduced.cost) < 250 < len(problem.costs) == 816
    search = Search(reduced)
    whole = reduced.whole(search.chosen)
    chosen = [whole[node] for node in range(816)]
    assert problem.cost(chosen) == reduced.constant + search.cost(reduced.cost)
    over = (reduced.used(search.chosen) - reduced.room).max()
    assert problem.peak(chosen) - problem.limit == pytest.approx(over)

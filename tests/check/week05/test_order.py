"""The order of 1F1B: each case counts, and each hint belongs to its mistake."""

import random

import pytest

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.oracle import NotRight
from helpers.check.week05 import order as exercise
from helpers.plans.schedules import Action, Schedule
from notebooks.solutions import week05
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew
from tests.check.told import said


def test_a_mistake_in_one_case_alone_is_found():
    def by_gpipe(p, m):
        return [[f"{kind}{i}" for kind in "FB" for i in range(m)] for _ in range(p)]

    found = found_alone(check.order_1f1b, week05.order_1f1b, by_gpipe)
    assert [finding.splitlines()[0] for finding in found] == [
        "4 ranks, 8 micro-batches: it runs, but rank 0 keeps 8 micro-batches, and 4 are enough",
        "2 ranks, 3 micro-batches: it runs, but rank 0 keeps 3 micro-batches, and 2 are enough",
        "3 ranks, 3 micro-batches: it runs, but rank 1 keeps 3 micro-batches, and 2 are enough",
        "1 ranks, 2 micro-batches: it runs, but rank 0 keeps 2 micro-batches, and 1 is enough",
        "4 ranks, 2 micro-batches: it runs, but rank 3 keeps 2 micro-batches, and 1 is enough",
    ]
    assert found[1].splitlines()[1:] == [
        "  rank 0: F0 F1 F2 B0 B1 B2",
        "  rank 1: F0 F1 F2 B0 B1 B2",
    ]


def test_the_solution_by_hand():
    assert week05.order_1f1b(2, 3) == [
        ["F0", "F1", "B0", "F2", "B1", "B2"],
        ["F0", "B0", "F1", "B1", "F2", "B2"],
    ]


def rows(*lines):
    return [line.split() for line in lines]


def refused(p, m, *lines):
    with pytest.raises(NotRight) as wrong:
        exercise.judge_order(rows(*lines), p, m)
    return wrong.value


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2"), "Are the backwards of the warm-up's"),
        (("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 B2"), "Count the forwards of the warm-up"),
        (("F0 F1 B0 F2 B1 B2", "B0 F0 F1 B1 F2 B2"), "its own forward has kept"),
        (("F0 F1 B0 F1 F2 B1 B2", "F0 B0 F1 B1 F2 B2"), "computed already"),
        (("F0 B0 F1 B1 F2 B2", "F0 F1 B0 F2 B1 B2"), "Which rank needs the most forwards"),
        (("F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"), "That is GPipe"),
        (("F0 F1 B0 F2 B1 B2", "F0 F1 B0 F2 B1 B2"), "same warm-up"),
        (("F0 F1 F2 B0 B1 B2", "F0 B0 F1 B1 F2 B2"), "The warm-up is too long"),
        (("F0 B0 F1 B1 F2 B2", "F0 B0 F1 B1 F2 B2"), "One micro-batch at a time"),
    ],
)
def test_the_hint_for_two_ranks_and_three_micro_batches(lines, hint):
    assert hint in refused(2, 3, *lines).hint


def test_the_time_is_told_in_units():
    wrong = refused(2, 3, "F0 B0 F1 B1 F2 B2", "F0 B0 F1 B1 F2 B2")
    assert wrong.finding.splitlines()[0] == (
        "it runs, but the step takes 18 units where 1F1B takes 12 (a forward takes 1, a backward 2)"
    )


def test_a_single_unit_too_many_counts():
    cells = week05.order_1f1b(4, 8)
    cells[0][:2] = ["F1", "F0"]
    with pytest.raises(NotRight, match="the step takes 34 units where 1F1B takes 33"):
        exercise.judge_order(cells, 4, 8)


@pytest.mark.parametrize(
    ("kept", "allowed", "hint"),
    [
        ([1, 1, 1], [3, 2, 1], "One micro-batch at a time"),
        ([2, 2, 1], [3, 2, 1], "one forward short"),
        ([3, 1, 1], [3, 2, 1], "one forward short"),
        ([2, 2, 1], [4, 2, 1], "too short. Until the first"),
        ([3, 2, 1], [3, 2, 1], "Which comes first in a pair"),
    ],
)
def test_the_hint_for_a_step_that_takes_too_long(kept, allowed, hint):
    assert hint in exercise.hint_time(None, kept, allowed)


def schedule(*lines):
    orders = tuple(
        tuple(Action(cell[0], rank, int(cell[1:])) for cell in line.split())
        for rank, line in enumerate(lines)
    )
    return Schedule("yours", tuple(range(len(lines))), 3, orders)


def test_the_warm_ups():
    found = exercise.warm_ups(schedule("F0 F1 B0 F2 B1 B2", "F0 F1 F2", "B0"))
    assert found == [2, 3, 0]
    equal = schedule("F0 B0", "F0 B0")
    assert "in a circle" in exercise.hint_error("deadlock: …", equal)
    assert "in a circle" in exercise.hint_error("deadlock: …", schedule("F0 F1 B0", "F0 B0"))
    assert "the most forwards" in exercise.hint_error("deadlock: …", schedule("F0 B0", "F0 F1 B0"))


def test_cells_that_are_none_and_numbers_that_do_not_exist():
    for cell in ("F3", "B3", "F-1"):
        with pytest.raises(NotRight) as wrong:
            exercise.read([["F0", cell], ["F0"]], 2, 3)
        assert wrong.value.finding == f"rank 0 has the cell {cell!r}; the micro-batches are 0 to 2"
        assert "At which number does each phase begin" in wrong.value.hint
    with pytest.raises(
        NotRight, match="rank 1 has the cell 'F2'; the micro-batches are 0 to 1"
    ) as wrong:
        exercise.read([["F0"], ["F2"], ["F0"]], 3, 2)
    assert "with so few micro-batches" in wrong.value.hint
    exercise.read([["F0"], ["F1"]], 2, 2)
    with pytest.raises(NotRight) as wrong:
        exercise.read([["F0"], ["F2"]], 2, 2)
    assert "At which number does each phase begin" in wrong.value.hint
    for cell in ("F", "F0 ", "W0", "f0", "F1.0", 0, None):
        with pytest.raises(NotRight, match="rank 0 has the cell"):
            exercise.read([[cell]], 1, 3)
    made = exercise.read((("F0", "B0"), ["F02"]), 2, 3)
    assert made.orders == ((Action("F", 0, 0), Action("B", 0, 0)), (Action("F", 1, 2),))


def test_answers_of_another_shape():
    for answer, finding in (
        ("FB", "returned 'FB'"),
        (None, "returned None"),
        ([["F0"]], "returned 1 lists for 2 ranks"),
        ([["F0"], "F0"], "rank 1: 'F0'"),
        ([["F0"], list], "rank 1: <class 'list'>"),
    ):
        with pytest.raises(NotRight) as wrong:
            exercise.read(answer, 2, 3)
        assert wrong.value.finding == finding
    assert exercise.short("x" * 57) == repr("x" * 57)
    assert exercise.short("x" * 58) == repr("x" * 58)[:59] + "…"


@pytest.mark.parametrize(("p", "m"), exercise.SIZES)
def test_a_memory_of_one_more_micro_batch_is_too_much(p, m):
    exercise.judge_order(week05.order_1f1b(p, m), p, m)
    for rank in range(p - 1 if m > p else 0):
        cells = week05.order_1f1b(p, m)
        first = next(k for k, cell in enumerate(cells[rank]) if cell[0] == "B")
        cells[rank].insert(first, cells[rank].pop(first + 1))  # one more forward first
        with pytest.raises(NotRight, match=f"rank {rank} keeps {p - rank + 1} micro-batches"):
            exercise.judge_order(cells, p, m)


def stub(*args):
    raise NotImplementedError


def test_the_solution_passes_and_the_stub_is_told_apart():
    verdict = check.order_1f1b(week05.order_1f1b)
    assert verdict, verdict
    assert check.order_1f1b(stub).status == "not written yet"


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.order_1f1b, week05.order_1f1b))


def test_grading_draws_few_and_many_micro_batches():
    sizes = [exercise.drawn(random.Random(secret)) for secret in range(90)]
    assert {ranks for ranks, _ in sizes} == {2, 3, 4, 5, 6}
    assert {micros for _, micros in sizes} == set(range(1, 12))
    with drawn_from(3):
        assert len(asked(check.order_1f1b, week05.order_1f1b)) == 5 + 3


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
    said(check.order_1f1b(mistake), hint)


def test_another_order_that_is_as_good_passes():
    """Backwards may be in tuples; what counts is the time and the memory."""
    assert check.order_1f1b(lambda p, m: tuple(map(tuple, week05.order_1f1b(p, m))))

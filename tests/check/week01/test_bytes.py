"""Bytes on the wire: the solution passes, common mistakes fail with their own hint."""

import pytest

from helpers import check
from helpers.check import elsewhere
from helpers.check.week01 import bytes as exercise
from notebooks.solutions import week01
from tests.check.asked import drawn_anew

EXERCISES = ("bytes_on_the_wire",)


def stub(*args):
    raise NotImplementedError


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_passes(name):
    verdict = getattr(check, name)(getattr(week01, name))
    assert verdict, verdict


@pytest.mark.parametrize("name", EXERCISES)
def test_the_stub_is_told_apart(name):
    assert getattr(check, name)(stub).status == "not written yet"


def n_for_n_minus_1(collective, ranks, size):
    return week01.bytes_on_the_wire(collective, ranks, size) * ranks / max(1, ranks - 1)


def one_phase(collective, ranks, size):
    return (ranks - 1) * size / ranks


def numbers_for_bytes(collective, ranks, size):
    return week01.bytes_on_the_wire(collective, ranks, size) / 4


def as_an_all_reduce(collective, ranks, size):
    if collective == "broadcast":
        return (ranks - 1) * size
    return 2 * (ranks - 1) * size / ranks


def buffers_for_chunks(collective, ranks, size):
    factor = 1 if collective == "broadcast" else ranks
    return factor * week01.bytes_on_the_wire(collective, ranks, size)


def one_rank_of_a_broadcast(collective, ranks, size):
    return size if collective == "broadcast" else week01.bytes_on_the_wire(collective, ranks, size)


def four_ranks_always(collective, ranks, size):
    return week01.bytes_on_the_wire(collective, min(ranks, 4), size)


def a_little_less(collective, ranks, size):
    return week01.bytes_on_the_wire(collective, ranks, size) - 20_000 * (1 < ranks < 5)


def more_for_a_broadcast_to_many(collective, ranks, size):
    more = 100 * (collective == "broadcast" and ranks > 4)
    return week01.bytes_on_the_wire(collective, ranks, size) + more


def no_number(collective, ranks, size):
    return None


BYTES_ON_THE_WIRE_MISTAKES = [
    (n_for_n_minus_1, "One too many"),
    (one_phase, "one phase of the ring"),
    (numbers_for_bytes, "numbers of four bytes"),
    (as_an_all_reduce, "whole all-reduce"),
    (buffers_for_chunks, "the whole buffer"),
    (one_rank_of_a_broadcast, "all ranks together are asked for"),
    (four_ranks_always, "Draw it"),
    (a_little_less, "Draw it"),
    (more_for_a_broadcast_to_many, "Draw it"),
    (no_number, "Return one number"),
]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), BYTES_ON_THE_WIRE_MISTAKES)
def test_a_mistake_in_bytes_on_the_wire_gets_its_own_hint(mistake, hint):
    verdict = check.bytes_on_the_wire(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


@pytest.mark.usefixtures("shared_ranks")
def test_without_linux_the_formula_stands_in():
    """The judge, with what ranks return where the kernel does not count."""
    place = elsewhere.place()
    rows = place.launch(exercise.run_bytes, 4, week01.bytes_on_the_wire, {}, elsewhere.SECONDS)
    for row in rows:
        for collective in exercise.COLLECTIVES:
            row[collective]["kernel"] = None
    exercise.judge_bytes(rows)
    assert [row["broadcast"]["formula"] for row in rows] == [exercise.SIZE] * 3 + [0]
    rows[0]["all_reduce"]["answer"] *= 4 / 3
    with pytest.raises(exercise.NotRight, match=r"by formula"):
        exercise.judge_bytes(rows)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: exercise.large())

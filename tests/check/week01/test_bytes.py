"""Bytes on the wire: the solution passes, common mistakes fail with their own hint."""

from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.week01 import bytes as exercise
from notebooks.solutions import week01
from tests.check.alone import found_alone
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


@pytest.mark.usefixtures("shared_ranks")
def test_a_mistake_in_one_case_alone_is_found():
    """By formula an answer may be 2 bytes off."""

    def off(by):
        return lambda *given: week01.bytes_on_the_wire(*given) + by

    found = found_alone(check.bytes_on_the_wire, week01.bytes_on_the_wire, off(3))
    asked = "that was asked for 64 ranks, and the formula says 984,375,000"
    assert found == [
        *(f"with {n} ranks: all_gather of 1,000,000,000 bytes: you said 984,375,003 bytes; {asked}"
          for n in (3, 4, 2)),
        "with 1 rank: all_gather of 1,200,000 bytes: you said 3 bytes; one rank sent 0 "
        "(the operating system counted, headers included)",
    ]  # fmt: skip


def rows(n, answers=lambda collective, rank: None, kernel=None):
    """What n ranks return: the right answers, but for those that are named; formulas, no kernel."""
    found = []
    for rank in range(n):
        found.append({})
        for collective in exercise.COLLECTIVES:
            right = week01.bytes_on_the_wire(collective, n, exercise.SIZE)
            alone = (n - 1) * exercise.SIZE * (rank == 0) if collective == "broadcast" else right
            given = answers(collective, rank)
            found[rank][collective] = {
                "answer": right if given is None else given,
                "large": week01.bytes_on_the_wire(collective, *exercise.large()),
                "kernel": kernel(collective, rank, alone) if kernel else None,
                "formula": alone,
            }
    return found


def judged(found):
    with pytest.raises(exercise.NotRight) as wrong:
        exercise.judge_bytes(found)
    return wrong.value


@pytest.mark.parametrize("collective", exercise.COLLECTIVES)
def test_each_collective_is_judged_here_and_for_many_ranks(collective):
    exercise.judge_bytes(rows(3))
    wrong = judged(rows(3, lambda one, rank: 7 if one == collective else None))
    assert wrong.finding.startswith(f"{collective} of 1,200,000 bytes: you said 7 bytes; ")
    found = rows(3)
    found[0][collective]["large"] += 3
    assert judged(found).finding.startswith(f"{collective} of 1,000,000,000 bytes: you said ")
    found[0][collective]["large"] -= 5
    exercise.judge_bytes(found)
    found[0][collective]["large"] -= 1
    right = week01.bytes_on_the_wire(collective, 64, 1_000_000_000)
    assert judged(found).finding.endswith(f"the formula says {right:,.0f}")


def test_the_rank_that_sends_most_counts_and_a_broadcast_counts_all():
    def more(collective, rank, formula):
        """A header more on the last rank."""
        return formula + 4000 * (rank == 2 and collective == "all_to_all")

    exercise.judge_bytes(rows(3, kernel=more))
    wrong = judged(rows(3, lambda one, rank: 790_000 if one == "all_to_all" else None, more))
    assert wrong.finding == (
        "all_to_all of 1,200,000 bytes: you said 790,000 bytes; "
        "one rank sent 804,000 (the operating system counted, headers included)"
    )
    wrong = judged(rows(3, lambda one, rank: 9.0 if one == "broadcast" else None))
    assert wrong.finding.endswith("all ranks together sent 2,400,000 (by formula)")


def test_the_kernel_counts_only_where_it_counts_on_every_rank():
    def on_rank_0(collective, rank, formula):
        return formula + 10**6 if rank == 0 else None

    exercise.judge_bytes(rows(2, kernel=on_rank_0))


def test_headers_may_be_counted_and_nothing_else():
    def with_headers(nbytes):
        return rows(3, kernel=lambda collective, rank, formula: formula + nbytes)

    exercise.judge_bytes(with_headers(1365))  # three of them in a broadcast
    assert judged(with_headers(4097)).finding.startswith("all_gather")
    assert judged(with_headers(-3)).finding.startswith("all_gather")
    exercise.judge_bytes(with_headers(-0.6))


@pytest.mark.parametrize(
    ("collective", "answer", "hint"),
    [
        ("all_gather", 1200, "how many *other* ranks"),
        ("broadcast", 3600, "how many *other* ranks"),
        ("all_reduce", 400, "numbers of four bytes"),
        ("all_reduce", 800, "one phase of the ring"),
        ("broadcast", 1200, "how many ranks get the buffer"),
        ("broadcast", 2399, "how many ranks get the buffer"),
        ("reduce_scatter", 1600, "Which part of an all-reduce"),
        ("all_to_all", 1600, "Which part of an all-reduce"),
        ("all_gather", 2400, "all of it, or a part of it"),
        ("all_reduce", 4800, "all of it, or a part of it"),
        ("all_gather", 801, "More than necessary"),
        ("broadcast", 2401, "Draw it"),
        ("all_gather", 799, "Draw it"),
    ],
)
def test_the_hint_for_three_ranks_and_1200_bytes(collective, answer, hint):
    assert hint in exercise.hint_bytes(collective, answer, 3, 1200)


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_a_rank_counts(monkeypatch, ranks):
    """Between two barriers, without the store's messages."""
    log = []

    class Count:
        def __init__(self, without_ports):
            log.append(("count", without_ports))

        def read(self):
            log.append("read")
            return 7

    def done(collective, buffer, part):
        log.append((collective, buffer.nbytes, part.nbytes))

    monkeypatch.setattr(exercise, "SentBytes", Count)
    monkeypatch.setattr(exercise, "store_ports", lambda: [123])
    monkeypatch.setattr(exercise, "dist", SimpleNamespace(barrier=lambda: log.append("barrier")))
    monkeypatch.setattr(exercise, "do", done)
    found = exercise.run_bytes(
        SimpleNamespace(rank=ranks - 1, world_size=ranks),
        lambda collective, n, size: torch.tensor([float(n)]),
    )
    assert log == [
        step
        for collective in exercise.COLLECTIVES
        for step in ("barrier", ("count", [123]), (collective, 1_200_000, 1_200_000 // ranks),
                     "barrier", "read")
    ]  # fmt: skip
    formulas = [800_000, 800_000, 1_600_000, 800_000, 0] if ranks == 3 else [0] * 5
    large = 64.0 if ranks == 3 else None
    assert found == {
        collective: {"answer": float(ranks), "large": large, "kernel": 7, "formula": formula}
        for collective, formula in zip(exercise.COLLECTIVES, formulas, strict=True)
    }
    assert all(type(row["answer"]) is float for row in found.values())
    assert exercise.plain("a word") == "a word"


def test_one_rank_and_a_word():
    assert "no other rank to send to" in exercise.hint_bytes("all_gather", 5, 1, 1200)
    wrong = judged(rows(1, lambda one, rank: True if one == "all_to_all" else None))
    assert wrong.finding == "all_to_all: returned True"

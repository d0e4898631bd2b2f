"""Bytes that a rank sends: the solution passes; each common mistake gets its own hint."""

from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week06 import step_bytes
from helpers.check.week06.step_bytes import formula, large
from notebooks.solutions import week06
from tests.check.alone import found_alone
from tests.check.asked import drawn_anew
from tests.check.told import told


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_of_bytes_per_step_passes():
    verdict = check.bytes_per_step(week06.bytes_per_step)
    assert verdict, verdict


def collectives(by_stage, *, of=lambda ranks: (ranks - 1) / ranks, times=1):
    """So many reduce-scatters and all-gathers: {stage: a function of the micro-batches}."""

    def solve(params, ranks, stage, number_bytes, micros):
        return times * by_stage[stage](micros) * params * number_bytes * of(ranks)

    return solve


def constant(count):
    return lambda micros: count


TRUE = {0: constant(2), 1: constant(2), 2: lambda m: m + 1, 3: lambda m: 3 * m}


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (collectives(TRUE, of=lambda ranks: 1), "infinitely many ranks"),
        (collectives(TRUE, of=lambda ranks: (ranks - 1) / ranks**2), "Of which size is the buffer"),
        (collectives(TRUE, of=lambda ranks: ranks - 1), "all ranks together"),
        (collectives(TRUE, times=1 / 4), "how many numbers there are"),
        (collectives(TRUE, times=8), "not bits"),
        (collectives(TRUE | {0: constant(1)}), "phases has the ring"),
        (collectives(TRUE | {1: constant(1)}), "each rank updates its shard"),
        (collectives(TRUE | {2: lambda m: m}), "each rank updates its shard"),
        (collectives(TRUE | {3: lambda m: 2 * m}), "What does the backward need"),
        (collectives(TRUE | {2: constant(2)}), "no rank has room"),
        (collectives(TRUE | {3: constant(3)}), "no rank has room"),
        (collectives(TRUE | {1: lambda m: 2 * m}), "Which stages can do that"),
        (collectives(TRUE | {2: lambda m: 2 * m}), "once in a step"),
        (collectives(TRUE | {3: lambda m: m + 1 + (m == 1)}), "What does the backward need"),
        (collectives(TRUE | {3: lambda m: m + 2}), "How often are they gathered in a step"),
        (collectives(TRUE | {3: lambda m: 3 * m + 1}), "Write down the collectives"),
        (lambda *_: "many", "Return one number"),
        (lambda *given: 0.995 * formula(*given), "Write down the collectives"),
        (lambda *_: 12, "Write down the collectives"),
    ],
)  # fmt: skip
def test_bytes_per_step(mistake, hint):
    told(check.bytes_per_step(mistake), hint)


@pytest.mark.usefixtures("shared_ranks")
def test_one_rank_sends_nothing():
    def one_rank_too(params, ranks, stage, number_bytes, micros):
        right = formula(params, ranks, stage, number_bytes, micros)
        return right if ranks > 1 else params * number_bytes

    told(check.bytes_per_step(one_rank_too), "no other rank")


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: large(3))


@pytest.mark.usefixtures("shared_ranks")
def test_a_wrong_number_for_a_step_in_one_case_alone_is_found():
    def three_more(*given):
        return week06.bytes_per_step(*given) + 3

    found = found_alone(check.bytes_per_step, week06.bytes_per_step, three_more)
    large = (
        "stage 0, 7,500,000,000 parameters of 2 bytes, 4 micro-batches: you said 2.953125e+10 bytes"
    )
    end = "64 ranks were asked for, and the formula says 29,531,250,000"
    assert found == [
        f"with 3 ranks: {large}; {end}",
        f"with 2 ranks: {large}; {end}",
        "with 1 rank: stage 0, 60,000 parameters of 4 bytes, 1 micro-batch: you said 3 bytes; "
        "one rank sent 0 (the operating system counted, headers included)",
    ]


def sent(n, micros, kernel=None, **changes):
    """What n ranks return: right answers, but for changes of rank 0's."""
    runs = []
    for rank in range(n):
        runs.append({})
        for stage in step_bytes.STAGES:
            right = week06.bytes_per_step(step_bytes.PARAMS, n, stage, 4, micros)
            runs[rank][stage] = {
                "answer": right,
                "large": week06.bytes_per_step(*large(stage)),
                "kernel": kernel(rank, right) if kernel else None,
            }
    for name, value in changes.items():
        what, stage = name.split("_")
        runs[0][int(stage)][what] = value
    return runs


def refused(runs, micros):
    with pytest.raises(NotRight) as wrong:
        step_bytes.judge_step(runs, micros)
    return wrong.value.finding


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_stage_is_judged_here_and_for_many_ranks(stage):
    step_bytes.judge_step(sent(3, 2), 2)
    right = {0: 320_000, 1: 320_000, 2: 480_000, 3: 960_000}[stage]
    step_bytes.judge_step(sent(3, 2, **{f"answer_{stage}": right + 2}), 2)
    found = refused(sent(3, 2, **{f"answer_{stage}": right + 3}), 2)
    assert found == (
        f"stage {stage}, 60,000 parameters of 4 bytes, 2 micro-batches: you said {right + 3:,} "
        f"bytes; one rank sent {right:,} (by formula)"
    )
    found = refused(sent(3, 2, **{f"large_{stage}": 1}), 2)
    assert found.startswith(
        f"stage {stage}, 7,500,000,000 parameters of 2 bytes, 4 micro-batches: "
    )
    many = {0: 2, 1: 2, 2: 5, 3: 12}[stage] * 15_000_000_000 * 63 // 64
    step_bytes.judge_step(sent(2, 2, **{f"large_{stage}": many - 2}), 2)
    for off in (-3, 3):
        assert "64 ranks were asked for" in refused(sent(2, 2, **{f"large_{stage}": many + off}), 2)


def test_the_rank_that_sends_most_and_its_headers():
    step_bytes.judge_step(sent(2, 3, kernel=lambda rank, right: right + 8000 * (rank == 1)), 3)
    found = refused(sent(2, 3, kernel=lambda rank, right: right + 8193 * (rank == 1)), 3)
    assert found.endswith("one rank sent 248,193 (the operating system counted, headers included)")
    step_bytes.judge_step(sent(2, 3, kernel=lambda rank, right: None if rank else 1), 3)


def test_the_collectives_of_a_step(monkeypatch):
    """Reduce-scatters and all-gathers of each stage, with 3 micro-batches."""
    calls = []
    for name in ("ring_all_reduce", "ring_reduce_scatter", "ring_all_gather"):
        monkeypatch.setattr(step_bytes, name, lambda *given, name=name: calls.append((name, given)))
    made = []
    for stage in step_bytes.STAGES:
        for call in step_bytes.messages(stage, 3):
            call("whole", "shard")
        made.append([name.removeprefix("ring_") for name, _ in calls])
        assert {given for name, given in calls if name == "ring_reduce_scatter"} <= {
            ("shard", "whole")
        }
        assert {given for name, given in calls if name == "ring_all_gather"} <= {("whole", "shard")}
        calls.clear()
    assert made == [
        ["all_reduce"],
        ["reduce_scatter", "all_gather"],
        ["reduce_scatter"] * 3 + ["all_gather"],
        ["all_gather", "all_gather", "reduce_scatter"] * 3,
    ]


@pytest.mark.parametrize(
    ("stage", "units", "hint"),
    [
        (0, 2 * 5 / 4, "infinitely many ranks"),
        (0, 2 / 7, "how many numbers there are"),
        (0, 16, "not bits"),
        (0, 2 / 5, "Of which size is the buffer"),
        (0, 10, "all ranks together"),
        (0, 1, "How many phases"),
        (1, 1, "What is sent then"),
        (2, 3, "What is sent then"),
        (2, 1, "What is sent then"),
        (3, 8, "What does the backward need"),
        (3, 6, "What does the backward need"),
        (3, 5, "How often are they gathered"),
        (2, 2, "Which messages are sent again"),
        (3, 3, "Which messages are sent again"),
        (2, 12, "Which stages can do that"),
        (2, 6, "after the last micro-batch"),
        (1, 6, "Which stages can do that"),
        (3, 4, "What does the backward need"),
        (2, 4.5, "Write down the collectives"),
    ],
)
def test_the_hint_for_a_step_on_5_ranks_with_3_micro_batches(stage, units, hint):
    """A unit is one reduce-scatter of 1000 numbers of 7 bytes."""
    answer = units * 7000 * 4 / 5
    assert hint in step_bytes.hint_traffic(answer, 1000, 5, stage, 7, 3)
    assert "no other rank" in step_bytes.hint_traffic(answer, 1000, 1, stage, 7, 3)


@pytest.fixture
def sending(monkeypatch):
    """What a rank does in `run_step`, in order, without other ranks."""
    events = []

    class Counted:
        def __init__(self, without_ports):
            events.append(f"count without {without_ports}")

        def read(self):
            events.append("read")
            return events.count("read") * 1000

    monkeypatch.setattr(step_bytes, "SentBytes", Counted)
    monkeypatch.setattr(step_bytes, "store_ports", lambda: {4711})
    monkeypatch.setattr(step_bytes.dist, "barrier", lambda: events.append("barrier"))
    monkeypatch.setattr(
        step_bytes,
        "messages",
        lambda *given: [lambda whole, shard: events.append((given, whole.shape, shard.shape))] * 2,
    )
    return events


def test_what_a_rank_counts_and_asks(sending):
    """Nothing is sent before the count begins, and all of it has been received when it ends."""
    given = []

    def solve(*arguments):
        given.append(arguments)
        return torch.tensor(len(given))

    found = step_bytes.run_step(SimpleNamespace(world_size=3, rank=1), solve, 2)
    assert given == [
        one
        for stage in (0, 1, 2, 3)
        for one in ((60_000, 3, stage, 4, 2), (64 * 117_187_500, 64, stage, 2, 4))
    ]
    assert found == {
        stage: {"answer": 2 * stage + 1, "large": 2 * stage + 2, "kernel": 1000 * (stage + 1)}
        for stage in (0, 1, 2, 3)
    }
    sent = [((stage, 2), (60_000,), (20_000,)) for stage in (0, 1, 2, 3)]
    assert sending == [
        event
        for one in sent
        for event in ("barrier", "count without {4711}", one, one, "barrier", "read")
    ]


def test_one_rank_is_not_asked_for_many(sending):
    found = step_bytes.run_step(SimpleNamespace(world_size=1, rank=0), lambda *given: 7.5, 1)
    assert [found[stage] for stage in (0, 3)] == [
        {"answer": 7.5, "large": None, "kernel": 1000 * (stage + 1)} for stage in (0, 3)
    ]


def test_without_the_kernel_s_count_on_any_rank_the_formula_counts():
    """Also where it is the last stage alone of the last rank that was not counted."""
    runs = sent(3, 2, kernel=lambda rank, right: right + 5000)
    runs[2][3]["kernel"] = None
    step_bytes.judge_step(runs, 2)
    runs[0][1]["answer"] += 5000
    assert refused(runs, 2).endswith("one rank sent 320,000 (by formula)")


@pytest.mark.parametrize(
    ("answer", "fine"),
    [(998, True), (997.5, True), (1002, True), (1002.5, False), (899.9, False), (900, True)],
)
def test_how_far_an_answer_may_be_off(answer, fine):
    given = (1000, 3, 2, 4, 5)
    if fine:
        step_bytes.compare(answer, given, 1000, "so many", 100)
        return
    with pytest.raises(NotRight) as wrong:
        step_bytes.compare(answer, given, 1000, "so many", 100)
    assert wrong.value.finding == (
        f"stage 2, 1,000 parameters of 4 bytes, 5 micro-batches: you said {answer:,.10g} bytes; "
        "so many"
    )


def test_what_is_no_number_of_bytes():
    for answer in ("12", None, True, [12.0]):
        with pytest.raises(NotRight) as wrong:
            step_bytes.compare(answer, (6, 3, 0, 2, 1), 8, "", 2)
        assert wrong.value.finding == (
            f"stage 0, 6 parameters of 2 bytes, 1 micro-batch: returned {answer!r}"
        )


def test_the_formula_by_hand():
    """On 5 ranks, 4/5 of 1000 numbers of 7 bytes for each collective of a buffer."""
    made = [formula(1000, 5, stage, 7, 3) for stage in (0, 1, 2, 3)]
    assert made == pytest.approx([2 * 5600, 2 * 5600, 4 * 5600, 9 * 5600])
    assert formula(1000, 1, 3, 7, 3) == 0


def test_two_micro_batches_have_hints_for_several():
    for stage, units, words in (
        (0, 4, "Which stages can do that"),
        (3, 4, "How often are they gathered"),
        (3, 3, "Which messages are sent again"),
    ):
        assert words in step_bytes.hint_traffic(units * 5600, 1000, 5, stage, 7, 2)


def test_one_micro_batch_has_no_hint_for_several():
    assert "phases" in step_bytes.hint_traffic(1000 * 4 / 5, 1000, 5, 0, 1, 1)
    for stage in (0, 1, 2, 3):
        assert "Write down" in step_bytes.hint_traffic(13, 1000, 5, stage, 1, 1)

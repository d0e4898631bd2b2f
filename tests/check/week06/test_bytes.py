"""Bytes per rank and per step: the solutions pass; each common mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week06 import rank_bytes, step_bytes
from helpers.check.week06.step_bytes import formula, large
from notebooks.solutions import week06
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew

RIGHT = week06.bytes_per_rank


def told(verdict, hint):
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def changed(kind, change):
    """The solution, with another number for one kind."""

    def solve(params, ranks, stage, *each):
        right = RIGHT(params, ranks, stage, *each)
        return right | {kind: change(right[kind], params, ranks, stage, *each)}

    return solve


def stages(*first):
    """Parameters, gradients, optimizer: each sharded from its stage on."""

    def solve(params, ranks, stage, *each):
        shard = -(-params // ranks)
        kinds = zip(("parameters", "gradients", "optimizer"), first, each, strict=True)
        return {kind: size * (shard if stage >= at else params) for kind, at, size in kinds}

    return solve


def fractions(params, ranks, stage, *each):
    right = RIGHT(params, ranks, stage, *each)
    return right | ({"optimizer": params / ranks * each[2]} if stage else {})


def tail_lost(params, ranks, stage, *each):
    right = RIGHT(params, ranks, stage, *each)
    return right | ({"optimizer": params // ranks * each[2]} if stage else {})


def padded_whole(params, ranks, stage, *each):
    right = RIGHT(params, ranks, stage, *each)
    room = -(-params // ranks) * ranks
    return right | ({"parameters": room * each[0]} if stage < 3 else {})


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (stages(3, 2, 9), "all of the optimizer. Which kinds does stage 1 shard"),
        (stages(3, 1, 1), "Stage 1 does not shard the gradients"),
        (stages(2, 2, 1), "Stage 2 does not shard the parameters"),
        (stages(0, 0, 0), "Stage 0 does not shard the parameters"),
        (stages(3, 9, 1), "all of the gradients. Which kinds does stage 2 shard"),
        (stages(9, 2, 1), "all of the parameters. Which kinds does stage 3 shard"),
        (changed("optimizer", lambda right, *_: right * 2 / 3), "the fp32 copy"),
        (changed("optimizer", lambda right, *_: right / 3), "the two moments"),
        (changed("parameters", lambda right, *_: right / 2), "how many numbers there are"),
        (changed("gradients", lambda right, *_: right * 8), "not bits"),
        (changed("gradients", lambda right, *_: right / 1e9), "1e9"),
        (changed("gradients", lambda right, *_: right / 2**30), "2**30"),
        (changed("optimizer", lambda right, *_: right * 16 / 12), "counts all kinds"),
        (changed("parameters", lambda *_: "15 GB"), "one number of bytes"),
        (changed("gradients", lambda right, *_: right + 1), "how many bytes has each"),
        (fractions, "padded until every rank"),
        (tail_lost, "left a tail"),
        (padded_whole, "needs padding"),
        (lambda *_: 16, "Return a dict"),
        (lambda *_: {"params": 1}, "Return a dict"),
    ],
)
def test_bytes_per_rank(mistake, hint):
    told(check.bytes_per_rank(mistake), hint)


def test_divided_twice():
    def twice(params, ranks, stage, *each):
        right = RIGHT(params, ranks, stage, *each)
        return right | ({"optimizer": right["optimizer"] / ranks} if stage else {})

    told(check.bytes_per_rank(twice), "Divided by the ranks twice")


def test_the_solutions_pass():
    assert check.bytes_per_rank(RIGHT)


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
    assert drawn_anew(lambda: asked(check.bytes_per_rank, week06.bytes_per_rank))
    assert drawn_anew(lambda: large(3))


@pytest.mark.parametrize("kind", ["parameters", "gradients", "optimizer"])
def test_a_mistake_in_one_case_alone_is_found(kind):
    """To twelve digits: rounding is right."""

    def off(by):
        return changed(kind, lambda right, *_: right * (1 + by))

    sizes = {
        "parameters": (15e9, 15e9, 15e9, 234_375_000, 4800, 2002, 252, 6, 2002),
        "gradients": (15e9, 15e9, 234_375_000, 234_375_000, 4800, 2002, 252, 2, 2002),
        "optimizer": (9e10, 1_406_250_000, 1_406_250_000, 1_406_250_000, 2400, 3012, 1512, 12,
                      12_012),
    }  # fmt: skip
    wheres = [
        *(f"7.5B parameters on 64 ranks, {way}" for way in ("data parallel", *(
            f"stage {stage}" for stage in (1, 2, 3)))),
        "all in fp32, stage 1",
        "a length that 4 ranks do not divide, stage 1",
        "a length that 8 ranks do not divide, stage 3",
        "fewer parameters than ranks, stage 2",
        "one rank, stage 3",
    ]  # fmt: skip
    for by in (3e-12, -3e-12):
        found = found_alone(check.bytes_per_rank, off(1e-13), off(by))
        assert [one.split(": ")[0] for one in found] == wheres
        assert [one.split("; ")[1] for one in found] == [
            f"a rank has {size:,.10g}" for size in sizes[kind]
        ]


def hint_of(kind, said, stage, params=1001, ranks=4, each=(2, 3, 12)):
    kinds = ("parameters", "gradients", "optimizer")
    right = RIGHT(params, ranks, stage, *each)[kind]
    of_one = each[kinds.index(kind)]
    return rank_bytes.hint_bytes(kind, said, right, params, ranks, stage, of_one, each)


SHARD = 251  # of 1001 numbers on 4 ranks


@pytest.mark.parametrize(
    ("kind", "said", "stage", "hint"),
    [
        ("gradients", 1001 / 4 * 3, 2, "padded until every rank"),
        ("gradients", 250 * 3, 2, "left a tail"),
        ("gradients", 1001 * 3, 2, "all of the gradients. Which kinds does stage 2 shard"),
        ("gradients", SHARD * 3, 1, "Stage 1 does not shard the gradients"),
        ("gradients", 1001 / 4 * 3, 1, "Stage 1 does not shard the gradients"),
        ("gradients", 1004 * 3, 1, "Only what is sharded needs padding"),
        ("gradients", SHARD, 2, "how many numbers there are"),
        ("gradients", 8 * SHARD * 3, 2, "not bits"),
        ("gradients", SHARD * 3 / 1e9, 2, "divide by 1e9"),
        ("gradients", SHARD * 3 / 2**30, 2, "divide by 2**30"),
        ("gradients", SHARD * 3 / 4, 2, "by the ranks twice"),
        ("gradients", SHARD * 17, 2, "How many bytes has the gradients of one parameter"),
        ("optimizer", SHARD * 8, 1, "Without the fp32 copy"),
        ("optimizer", SHARD * 4, 1, "Without the two moments"),
        (
            "parameters",
            SHARD * 2 + 1,
            3,
            "How many numbers of parameters does a rank have at stage 3",
        ),
    ],
)
def test_the_hint_for_bytes_per_rank(kind, said, stage, hint):
    assert hint in hint_of(kind, said, stage)


def test_models_that_grading_draws_differ():
    models = [rank_bytes.drawn(random.Random(secret))[1] for secret in range(60)]
    assert {stage for _, _, stage, *_ in models} == {0, 1, 2, 3}
    assert {each for *_, a, b, c in models for each in [(a, b, c)]} == {(2, 2, 12), (4, 4, 8)}


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

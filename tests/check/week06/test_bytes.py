"""Bytes per rank and per step: the solutions pass; each common mistake gets its own hint."""

import pytest

from helpers import check
from helpers.check.week06.step_bytes import formula, large
from notebooks.solutions import week06
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

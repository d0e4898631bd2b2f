"""Bytes on a rank by stage: the solution passes; each common mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week06 import rank_bytes
from notebooks.solutions import week06
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew
from tests.check.told import told

RIGHT = week06.bytes_per_rank


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


def test_the_solution_passes():
    assert check.bytes_per_rank(RIGHT)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.bytes_per_rank, RIGHT))


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


@pytest.mark.parametrize(
    ("stage", "parameters", "gradients", "optimizer"),
    [(0, 2002, 3003, 12_012), (1, 2002, 3003, 3012), (2, 2002, 753, 3012), (3, 502, 753, 3012)],
)
def test_the_right_bytes_of_1001_parameters_on_4_ranks(stage, parameters, gradients, optimizer):
    """A shard has 251 numbers. A kind that is not sharded has no padding."""
    right = rank_bytes.right_bytes(1001, 4, stage, 2, 3, 12)
    assert right == {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}
    assert rank_bytes.right_bytes(1001, 1, stage, 2, 3, 12) == {
        "parameters": 2002, "gradients": 3003, "optimizer": 12_012,
    }  # fmt: skip


def refused(answer, stage=2):
    with pytest.raises(NotRight) as wrong:
        rank_bytes.judge_bytes(answer, 1001, 4, stage, 2, 3, 12)
    return wrong.value


def test_each_kind_has_a_number():
    right = {"parameters": 2002, "gradients": 753, "optimizer": 3012}
    rank_bytes.judge_bytes(right, 1001, 4, 2, 2, 3, 12)
    for answer in (
        {"parameters": 2002, "gradients": 753},
        {**right, "all": 0},
        list(right),
        [*right.items()],
        None,
    ):
        assert refused(answer).finding == f"returned {answer!r}"
    for kind, said in (("parameters", "2002"), ("gradients", None), ("optimizer", True)):
        wrong = refused({**right, kind: said})
        assert wrong.finding == f"{kind}: {said!r}"
        assert wrong.hint == "Each value is one number of bytes."


def test_the_first_wrong_kind_is_told_with_what_is_right():
    wrong = refused({"parameters": 502, "gradients": 3003, "optimizer": 0})
    assert wrong.finding == "you said 502 bytes of parameters; a rank has 2,002"
    assert wrong.hint.startswith("Stage 2 does not shard the parameters.")
    wrong = refused({"parameters": 2002, "gradients": 753, "optimizer": 12_012})
    assert wrong.finding == "you said 12,012 bytes of optimizer; a rank has 3,012"
    assert wrong.hint == "That is all of the optimizer. Which kinds does stage 2 shard?"


@pytest.mark.parametrize(
    ("kind", "said", "stage"),
    [
        ("gradients", 3003 * (1 + 1e-9), 2),
        ("gradients", 1001 / 4 * 3 * (1 - 1e-9), 2),
        ("gradients", 753 / 8, 2),
        ("gradients", 753 / 3 + 1, 2),
        ("parameters", 502 * 8 + 1, 3),
    ],
)
def test_what_is_near_a_mistake_is_not_that_mistake(kind, said, stage):
    assert hint_of(kind, said, stage).startswith(f"How many numbers of {kind} does a rank")


def test_only_the_optimizer_has_a_copy_and_moments():
    for said in (8, 4):
        found = hint_of("gradients", SHARD * said, 2, each=(2, 12, 12))
        assert found.startswith("How many numbers of gradients")


def test_the_hint_on_one_rank():
    """A shard is everything there, so what is asked for is the size of a number."""
    assert "how many numbers there are" in hint_of("gradients", 1001, 3, ranks=1)
    assert "how many bytes has each" in hint_of("gradients", 3005, 3, ranks=1)


def test_models_that_grading_draws_can_be():
    models = [rank_bytes.drawn(random.Random(secret)) for secret in range(200)]
    assert {where for where, _ in models} == {"another model"}
    assert all(2 <= ranks <= 99 and params >= 10 for _, (params, ranks, *_) in models)
    assert max(ranks for _, (_, ranks, *_) in models) > 90
    assert max(params for _, (params, *_) in models) > 9e8

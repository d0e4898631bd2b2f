"""Bytes in mixed precision: the solution passes; each common mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.week08 import mixed_bytes as exercise
from notebooks.solutions import week08
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew


def changed(change):
    """The solution, with its answer changed."""

    def solve(params, ranks, stage, low_bytes, master, moment_bytes):
        found = week08.mixed_bytes(params, ranks, stage, low_bytes, master, moment_bytes)
        return change(found, params, ranks, stage, low_bytes, master, moment_bytes)

    return solve


def with_kind(kind, number):
    return changed(lambda found, *given: found | {kind: number(found, *given)})


def test_the_solution_passes():
    verdict = check.mixed_bytes(week08.mixed_bytes)
    assert verdict, verdict


@pytest.mark.parametrize("kind", ["parameters", "gradients", "master copy", "moments"])
def test_one_byte_more_is_wrong(kind):
    assert not check.mixed_bytes(with_kind(kind, lambda found, *_: found[kind] + 1))


def test_the_paper_s_sixteen_bytes():
    # Rajbhandari et al. 2020, section 3.1: 2 + 2 + 12
    assert sum(week08.mixed_bytes(1000, 1, 0, 2, True, 4).values()) == 16_000


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (with_kind("master copy", lambda found, *_: 0), "updates a copy in fp32"),
        (with_kind("master copy", lambda found, params, *_: 4 * params), "no master copy here"),
        (with_kind("moments", lambda found, *_: found["moments"] // 2), "two moments"),
        (with_kind("moments", lambda found, params, *_: 12 * params), "How many moments"),
        (with_kind("gradients", lambda found, params, *_: 4 * params), "format of its parameter"),
        (with_kind("parameters", lambda found, *_: 8 * found["parameters"]), "not bits"),
        (
            with_kind("moments", lambda found, params, *g: 2 * g[-1] * params),
            "shards the moments",
        ),
        (
            with_kind("gradients", lambda found, params, ranks, *g: found["gradients"] // ranks),
            "does not shard the gradients",
        ),
        (
            with_kind("gradients", lambda found, params, ranks, stage, low, *_: low * params
                      // (ranks if stage >= 2 else 1)),
            "padded",
        ),
        (changed(lambda found, *_: sum(found.values())), "Return a dict"),
        (changed(lambda found, *_: {"parameters": found["parameters"]}), "Return a dict"),
        (changed(lambda found, *_: found | {"all": 0}), "Return a dict"),
        (with_kind("moments", lambda *_: None), "one number of bytes"),
        (with_kind("parameters", lambda found, *_: found["parameters"] + 5), "How many numbers"),
    ],
)  # fmt: skip
def test_each_mistake_is_told(mistake, hint):
    verdict = check.mixed_bytes(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.mixed_bytes, week08.mixed_bytes))


def test_a_mistake_in_one_case_alone_is_found():
    def less(kind):
        return found_alone(check.mixed_bytes, week08.mixed_bytes,
                           with_kind(kind, lambda found, *_: found[kind] - 1))  # fmt: skip

    sizes = {
        "parameters": (2e6, 4e6, 2e6, 14e9, 14e9, 2002, 251),
        "gradients": (2e6, 4e6, 2e6, 14e9, 14e9, 668, 251),
        "master copy": (4e6, 0, 0, 437_500_000, 437_500_000, 1336, 1004),
        "moments": (8e6, 8e6, 4e6, 875e6, 437_500_000, 2672, 2008),
    }
    wheres = [
        "bf16 with a master copy, one rank",
        "all in fp32, one rank",
        "bf16 alone, one rank",
        "bf16 with a master copy, 64 ranks, stage 1",
        "bf16 with 16-bit moments, 64 ranks, stage 1",
        "bf16 with a master copy, 3 ranks, stage 2",
        "fp8 weights and gradients with a master copy, 4 ranks, stage 3",
    ]
    for kind, rights in sizes.items():
        ends = [f"a rank has {int(right):,}" for right in rights]
        found = less(kind)
        assert [one.split(": ")[0] for one in found] == wheres
        assert [one.split("; ")[1] for one in found] == ends
        assert all(f" bytes of {kind}; " in one for one in found)


@pytest.mark.parametrize(
    ("kind", "said", "right", "master", "hint"),
    [
        ("master copy", 5, 0, False, "There is no master copy here"),
        ("master copy", 0, 1336, True, "How many bytes has one of its numbers"),
        ("moments", 1336, 2672, True, "two moments"),
        ("gradients", 5344, 668, True, "not bits"),
        ("moments", 2672 * 1001 / 334, 2672, True, "shards the moments over the ranks"),
        ("parameters", 2002 * 334 / 1001, 2002, True, "does not shard the parameters"),
        ("gradients", 668 - 16, 668, True, "the last one is padded"),
        ("gradients", 668 + 16, 668, True, "the last one is padded"),
        ("gradients", 668 + 17, 668, True, "format of its parameter"),
        ("moments", 2672 + 17, 2672, True, "See moment_bytes"),
        ("parameters", 2002 + 17, 2002, True, "How many numbers of this kind"),
    ],
)
def test_the_hint_for_1001_parameters_on_3_ranks(kind, said, right, master, hint):
    assert hint in exercise.hint(kind, said, right, 1001, 3, master)


def test_one_rank_shards_nothing():
    assert "format of its parameter" in exercise.hint("gradients", 2003, 2002, 1001, 1, True)


def test_models_that_grading_draws_differ():
    models = [exercise.drawn(random.Random(secret))[1] for secret in range(60)]
    _, ranks, stages, low, masters, moments = zip(*models, strict=True)
    assert (set(stages), set(low), set(masters), set(moments)) == (
        {0, 1, 2, 3}, {1, 2, 4}, {True, False}, {2, 4},
    )  # fmt: skip
    assert min(ranks) >= 2

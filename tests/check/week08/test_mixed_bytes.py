"""Bytes in mixed precision: the solution passes; each common mistake gets its own hint."""

import pytest

from helpers import check
from notebooks.solutions import week08
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

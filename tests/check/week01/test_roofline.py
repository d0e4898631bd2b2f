"""Place an operation on the roofline: the solution passes, each mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.week01.roofline import drawn, hint_limit, hint_rate
from helpers.simulate.hardware import A100, H100
from notebooks.solutions import week01
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew


def stub(flops, nbytes, peak, bandwidth):
    raise NotImplementedError


def right(flops, nbytes, peak, bandwidth):
    return week01.place_on_roofline(flops, nbytes, peak, bandwidth)


def rate_of(wrong):
    """The right limit, and another rate."""
    return lambda *args: (wrong(*args), right(*args)[1])


def limit_of(wrong):
    """The right rate, and another limit."""
    return lambda *args: (right(*args)[0], wrong(*args))


def name(is_arithmetic):
    return "arithmetic" if is_arithmetic else "memory"


MISTAKES = [
    (lambda *args: right(*args)[0], "Return two values"),
    (lambda *args: right(*args)[::-1], "rate first"),
    (rate_of(lambda f, b, peak, bw: max(f / peak, b / bw)), "a time in seconds"),
    (rate_of(lambda f, b, peak, bw: f / b), "the arithmetic intensity"),
    (rate_of(lambda f, b, peak, bw: min(peak, b / f * bw)), "divide bytes by FLOPs"),
    (rate_of(lambda f, b, peak, bw: min(1, f / b * bw / peak)), "fraction of the peak"),
    (rate_of(lambda f, b, peak, bw: f / (f / peak + b / bw)), "added two times"),
    (rate_of(lambda f, b, peak, bw: max(peak, f / b * bw)), "compute so fast"),
    (rate_of(lambda f, b, peak, bw: peak), "That is the peak"),
    (rate_of(lambda f, b, peak, bw: f / b * bw), "rate that the memory allows"),
    (rate_of(lambda f, b, peak, bw: f * b), "two upper bounds"),
    (rate_of(lambda *args: right(*args)[0] * (1 + 1e-8)), "That is the peak"),
    (limit_of(lambda f, b, peak, bw: f / b > peak / bw), "as the second value"),
    (limit_of(lambda f, b, peak, bw: "compute"), "as the second value"),
    (limit_of(lambda f, b, peak, bw: name(f > b)), "not 1 FLOP per byte"),
    (limit_of(lambda f, b, peak, bw: name(f / b < peak / bw)), "swapped"),
    (limit_of(lambda f, b, peak, bw: name(f / b > bw / peak)), "bandwidth / peak?"),
]


def test_the_solution_passes():
    verdict = check.place_on_roofline(week01.place_on_roofline)
    assert verdict, verdict


def test_the_stub_is_told_apart():
    assert check.place_on_roofline(stub).status == "not written yet"


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.place_on_roofline(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_the_solution_agrees_with_the_package():
    for chip in (A100, H100):
        for flops, nbytes in ((1e9, 12e9), (2 * 4096**3, 6 * 4096**2)):
            peak, bandwidth = chip.peak("bfloat16"), chip.memory_bytes_per_second
            rate, limit = week01.place_on_roofline(flops, nbytes, peak, bandwidth)
            assert flops / rate == pytest.approx(chip.seconds(flops, nbytes, "bfloat16"))
            assert limit == name(flops / nbytes > chip.ridge("bfloat16"))


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.place_on_roofline, week01.place_on_roofline))


def test_a_mistake_in_one_case_alone_is_found():
    """Right to nine digits is right; off by 2e-9 is not."""

    def nearly(*args):
        rate, limit = right(*args)
        return rate * (1 + 1e-10), limit

    def too_low(*args):
        rate, limit = right(*args)
        return rate * (1 - 2e-9) or -1, limit

    def swapped(*args):
        rate, limit = right(*args)
        return rate, name(limit == "memory")

    found = found_alone(check.place_on_roofline, nearly, too_low)
    assert [finding.rpartition(" allows ")[2] for finding in found] == [
        "3.12e+14", "1.69917e+11", "3.12e+14", "5.71733e+14", "8e+10", "1e+11", "0",
    ]  # fmt: skip
    assert found[3] == (
        "the same product on an H100: 2.684e+08 FLOPs, 1.573e+06 bytes; peak 9.894e+14 FLOP/s, "
        "bandwidth 3.35e+12 bytes/s\n"
        "  your rate is 5.71733e+14 FLOP/s; the roofline allows 5.71733e+14"
    )
    found = found_alone(check.place_on_roofline, nearly, swapped)
    assert [finding.splitlines()[1] for finding in found] == [
        f"  your limit is {name(right != 'arithmetic')!r}; it is {right!r}"
        for right in ("arithmetic", "memory", "arithmetic", "memory", "memory", "arithmetic",
                      "memory")
    ]  # fmt: skip


# FLOPs, bytes, peak, bandwidth: the ridge is at 5 FLOP per byte; 8 s to compute, 6 s to move
ABOVE, BELOW = (48.0, 8.0, 6.0, 1.2), (12.0, 8.0, 6.0, 1.2)


@pytest.mark.parametrize(
    ("rate", "case", "hint"),
    [
        (8.0, ABOVE, "a time in seconds"),
        (48 / 8, (48.0, 8.0, 5.0, 1.2), "arithmetic intensity"),
        (8 / 48 * 1.2, ABOVE, "divide bytes by FLOPs"),
        (12 / (8 / 1.2) / 6, BELOW, "fraction of the peak"),
        (48 / (8 + 8 / 1.2), ABOVE, "added two times"),
        (6.0, BELOW, "That is the peak"),
        (7.2, ABOVE, "Can the processor compute so fast"),
        (5.0, ABOVE, "two upper bounds"),
    ],
)
def test_the_hint_for_a_wrong_rate(rate, case, hint):
    assert hint in hint_rate(rate, *case)


@pytest.mark.parametrize(
    ("limit", "case", "hint"),
    [
        ("both", ABOVE, "as the second value"),
        ("arithmetic", BELOW, "not 1 FLOP per byte"),
        ("arithmetic", (4.0, 8.0, 6.0, 1.2), "or bandwidth / peak"),
        ("memory", ABOVE, "swapped"),
        ("arithmetic", (1.0, 8.0, 6.0, 1.2), "swapped"),
    ],
)
def test_the_hint_for_a_wrong_limit(limit, case, hint):
    assert hint in hint_limit(limit, *case)


def test_grading_draws_processors_on_both_sides_of_the_ridge():
    limits = [right(*drawn(random.Random(secret))[1])[1] for secret in range(30)]
    assert 3 < limits.count("memory") < 27

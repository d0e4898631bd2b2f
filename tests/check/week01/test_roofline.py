"""Place an operation on the roofline: the solution passes, each mistake gets its own hint."""

import pytest

from helpers import check
from helpers.simulate.hardware import A100, H100
from notebooks.solutions import week01
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

"""One step: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from helpers.check.week10.ssm_step import CASES, HINTS, inputs, step
from helpers.models.convolution import Convolution
from helpers.models.scan.step import selective_step
from notebooks.solutions import week10
from tests.check.asked import asked, drawn_anew


def test_the_solution_passes():
    verdict = check.ssm_step(week10.ssm_step)
    assert verdict, verdict


def test_the_stub_is_told_apart():
    def stub(t, x, start, h, weight, delta, A, B, C):
        raise NotImplementedError

    assert check.ssm_step(stub).status == "not written yet"


@pytest.mark.parametrize(("where", "t", "start"), CASES, ids=lambda value: str(value))
def test_the_reference_is_the_package_s_step(where, t, start):
    """The convolution of Mamba's block, and its step, on the sequence alone."""
    _, x, _, h, weight, delta, A, B, C = inputs(t, start)
    made = Convolution(x.shape[1], len(weight), dtype=x.dtype)
    made.load_state_dict({"weight": weight.mT, "bias": torch.zeros_like(x[0])})
    u = made(x[None, start : t + 1])[0][:, -1].detach()
    h = h[None] if t > start else torch.zeros_like(h)[None]
    none = torch.zeros_like(x[0])
    y, h = selective_step(u, delta[None], A, B[None], C[None], none, h)
    found = step(*inputs(t, start))
    torch.testing.assert_close(found, (y[0], h[0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", [0, 1])
def test_digits_of_float32_are_too_few(place):
    def rounded(*arguments):
        pair = list(week10.ssm_step(*arguments))
        pair[place] = pair[place] * (1 + 1e-6)
        return tuple(pair)

    assert check.ssm_step(rounded).status == "wrong"


@pytest.mark.parametrize("mistake", HINTS)
def test_each_mistake_is_told(mistake):
    verdict = check.ssm_step(lambda *arguments: step(*arguments, mistake=mistake))
    assert verdict.status == "wrong", verdict
    assert verdict.hint == HINTS[mistake], verdict


def test_the_hints_of_the_named_mistakes():
    for mistake, words in (
        ("hold", "discretises B like A"),
        ("exp of B", "discretises B like A"),
        ("future", "sees later tokens"),
        ("state kept", "With which state does a new sequence start"),
    ):
        assert words in HINTS[mistake]


def test_a_future_that_does_not_exist():
    """Without a bound, the last token's future is an error; an earlier case tells it before."""

    def solve(t, x, start, h, weight, delta, A, B, C):
        u = (weight * x[t : t + len(weight)]).sum(0)
        h = torch.exp(delta[:, None] * A) * h + delta[:, None] * B * u[:, None]
        return h @ C, h

    assert check.ssm_step(solve).hint == HINTS["future"]


def in_place(t, x, start, h, weight, delta, A, B, C):
    h *= t != start
    h.copy_(step(t, x, start, h, weight, delta, A, B, C)[1])
    return (h * C).sum(-1), h


def test_writing_into_the_state_is_fine():
    assert check.ssm_step(in_place)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda *a: None, "Return a pair"),
        (lambda *a: step(*a)[0], "Return a pair"),
        (lambda *a: (*step(*a), 0), "Return a pair"),
        (lambda *a: (step(*a)[0], 1.0), "Return two tensors"),
        (lambda *a: step(*a)[::-1], "y is (E,)"),
        (lambda *a: (step(*a)[0], step(*a)[1].mT), "y is (E,)"),
        (lambda *a: (2 * step(*a)[0], step(*a)[1]), "sum over its N numbers"),
        (lambda *a: (step(*a)[0], 2 * step(*a)[1]), "where u[t] is"),
        (lambda *a: [part * torch.nan for part in step(*a)], "where u[t] is"),
    ],
)
def test_answers_of_another_kind(answer, hint):
    verdict = check.ssm_step(answer)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.ssm_step, week10.ssm_step))

"""One step: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from helpers.check.week10.ssm_step import CASES, HINTS, inputs, said, step
from helpers.models.convolution import Convolution
from helpers.models.scan.selective import selective_step
from notebooks.solutions import week10
from tests.check.alone import found_alone
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


def test_a_mistake_in_one_case_alone_is_found():
    """In one number: off by 3e-9 is wrong, rounding is right."""

    def off(place, by):
        def solve(*arguments):
            pair = list(week10.ssm_step(*arguments))
            pair[place] = pair[place].clone()
            pair[place].view(-1)[-1] += by * (1 + pair[place].view(-1)[-1].abs())
            return pair

        return solve

    wheres = [where for where, *_ in CASES]
    for place, words in ((0, "the state is right, but y is not"), (1, "the state is not right")):
        for by in (3e-9, -3e-9):
            found = found_alone(check.ssm_step, off(place, 1e-10), off(place, by))
            assert found == [f"{where}: {words}" for where in wheres]


def test_where_sequences_start():
    assert [(t, start) for _, t, start in CASES] == [(4, 0), (0, 0), (6, 6), (7, 6), (8, 6)]
    for _, t, start in CASES:
        token, x, first, h, weight, delta, A, B, C = inputs(t, start)
        assert (token, first) == (t, start)
        assert [tuple(n.shape) for n in (x, h, weight, delta, A, B, C)] == [
            (9, 3), (3, 4), (3, 3), (3,), (3, 4), (4,), (4,),
        ]  # fmt: skip
        assert (delta > 0).all()
        assert (A < 0).all()
        assert not torch.equal(B, C)


def test_each_mistake_is_another_step_in_some_case():
    """And no two of them in all cases: else a hint could be that of another mistake."""
    made = {}
    for mistake in ("", *HINTS):
        pairs = [step(*inputs(t, start), mistake=mistake) for _, t, start in CASES]
        made[mistake] = torch.cat([part.flatten() for pair in pairs for part in pair])
    for one in made:
        alike = [other for other in made if torch.allclose(made[one], made[other], atol=1e-3)]
        assert alike == [one]


def test_a_long_answer_is_shown_in_part():
    assert said([1] * 26) == repr([1] * 26)
    assert said([1] * 27) == repr([1] * 27)[:77] + "…"


def by_hand(mistake, t, x, start, h, weight, delta, A, B, C):
    """The step with a mistake, channel by channel and number by number."""
    first = 0 if mistake == "sequences mixed" else start
    ahead = {"future": 2, "centred": 1, "one behind": -1}.get(mistake, 0)
    y, new = torch.zeros(3, dtype=x.dtype), torch.zeros_like(h)
    for e in range(3):
        u = 0.0
        for back in range(3):
            row = weight[back if mistake == "flipped" else 2 - back, e]
            if first <= t - back + ahead <= 8:
                u += row * x[t - back + ahead, e]
        if mistake == "no convolution":
            u = x[t, e]
        for n in range(4):
            old = h[e, n] if t > start or mistake == "state kept" else 0.0 * h[e, n]
            turn = delta[e] * A[e, n]
            decay = turn.exp()
            if mistake in ("no exp", "no step in A", "Euler"):
                decay = {"no exp": turn, "no step in A": A[e, n].exp(), "Euler": 1 + turn}[mistake]
            write = delta[e] * B[n]
            if mistake == "hold":
                write = turn.expm1() / A[e, n] * B[n]
            if mistake == "exp of B":
                write = write.exp()
            if mistake == "no step in B":
                write = B[n]
            new[e, n] = decay * old + write * u
            if mistake == "write, then decay":
                new[e, n] = decay * old + decay * write * u
            y[e] += C[n] * (old if mistake == "read before" else new[e, n])
    return y, new


@pytest.mark.parametrize("mistake", ["", *HINTS])
def test_each_mistake_by_hand(mistake):
    for _, t, start in CASES:
        expected = by_hand(mistake, *inputs(t, start))
        found = step(*inputs(t, start), mistake=mistake)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)

"""The flaw in a given fit: each fit has the flaw that it is said to have, and no other."""

import numpy as np
import pytest

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.oracle import NotRight
from helpers.check.week02.flaw import (
    FALSE_ALARMS,
    FITS,
    FLAWS,
    MISSED,
    TOKENS,
    WIDTHS,
    given_fit,
    hint_flaw,
    judge_flaw,
    minimum,
)
from helpers.check.week02.objective import THETA, huber, predicted
from notebooks.solutions import week02
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew

EVERY = [(flaw, given_fit(flaw, **changes)) for flaw, changes in FITS]


def test_the_solution_passes():
    verdict = check.find_flaw(week02.find_flaw)
    assert verdict, verdict


@pytest.mark.parametrize(("flaw", "fit"), EVERY)
def test_a_fit_has_its_flaw_alone(flaw, fit):
    left = fit.scheduled / fit.tokens - 1
    at_work = fit.flops / (6 * fit.tokens * fit.params)
    different = min(len(set(fit.params)), len(set(fit.tokens)))
    lower = fit.objective(fit.theta) / fit.objective(minimum(fit))
    assert (left.max() > 0.02) == (flaw == "schedule")
    assert left.max() <= 0.005 + 1e-6 or flaw == "schedule"  # clearly less than 1 %
    assert (at_work.max() > 1.002) == (flaw == "embedding")
    assert abs(at_work - 1).max() < 0.0005 or flaw == "embedding"
    assert (different < 3) == (flaw == "sizes")
    # far from any doubt about a threshold
    assert lower > 5 if flaw == "stopped early" else lower < 1.001


def test_the_objective_s_size_does_not_tell():
    """A sound noisy fit has a larger objective than a quiet one that stopped early."""
    by_flaw = {
        flaw: [f.objective(f.theta) for kind, f in EVERY if kind == flaw] for flaw, _ in FITS
    }
    assert max(by_flaw["none"]) > min(by_flaw["stopped early"])


def test_a_fit_is_the_same_again():
    again = given_fit.__wrapped__("stopped early", seed=5)
    np.testing.assert_array_equal(again.loss, given_fit("stopped early", seed=5).loss)
    assert again.theta == pytest.approx(given_fit("stopped early", seed=5).theta, rel=1e-6)


def instead(**answers):
    """The solution, but for one flaw it says something else."""
    return lambda fit: answers.get((said := week02.find_flaw(fit)).replace(" ", "_"), said)


def by_size(fit):
    said = week02.find_flaw(fit)
    if said in ("none", "stopped early"):
        return "stopped early" if fit.objective(fit.theta) > 3e-4 else "none"
    return said


def exact_schedule(fit):
    return "schedule" if (fit.tokens != fit.scheduled).any() else week02.find_flaw(fit)


def first_run_s_schedule(fit):
    if fit.tokens[0] < 0.99 * fit.scheduled[0]:
        return "schedule"
    said = week02.find_flaw(fit)
    return "none" if said == "schedule" else said


def exact_flops(fit):
    if (fit.flops != 6 * fit.params * fit.tokens).any() and week02.find_flaw(fit) == "none":
        return "embedding"
    return week02.find_flaw(fit)


def mean_flops(fit):
    said = week02.find_flaw(fit)
    ratio = (fit.flops / (6 * fit.params * fit.tokens)).mean()
    return "none" if said == "embedding" and ratio < 1.01 else said


def params_alone(fit):
    said = week02.find_flaw(fit)
    return "none" if said == "sizes" and len(set(fit.params)) > 2 else said


def three_are_not_enough(fit):
    return "sizes" if len(set(fit.params)) <= 3 else week02.find_flaw(fit)


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda fit: "none", "every run"),
        (lambda fit: "stopped early", "whether theta is a minimum"),
        (lambda fit: None, "Return one of"),
        (lambda fit: "outlier", "Return one of"),
        (by_size, "whether theta is a minimum"),
        (exact_schedule, "Steps are whole"),
        (first_run_s_schedule, "every run"),
        (exact_flops, "FLOPs are noted within"),
        (mean_flops, "how many parameters were at work"),
        (params_alone, "a power law is fitted to each"),
        (three_are_not_enough, "How many are enough?"),
        (instead(stopped_early="none"), "a search of your own"),
        (instead(embedding="stopped early"), "Look at the runs before theta"),
        (instead(stopped_early="schedule"), "a search of your own"),
    ],
)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.find_flaw(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert "fit " in verdict.finding


def test_every_flaw_is_asked_for_twice():
    kinds = [flaw for flaw, _ in FITS]
    assert all(kinds.count(flaw) >= 2 for flaw in (*FLAWS, "none"))


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.find_flaw, week02.find_flaw))


def test_a_mistake_in_one_case_alone_is_found():
    found = found_alone(check.find_flaw, week02.find_flaw, lambda fit: "outlier")
    runs = [28, 28, 28, 16, 28, 28, 28, 28, 14, 24, 24]
    assert found == [
        f"fit {number}, to {count} runs: returned 'outlier'" for number, count in enumerate(runs, 1)
    ]
    kinds = ["none", *FLAWS, "none", *FLAWS, "none"]
    answers = dict(zip(kinds, [*kinds[1:6], *kinds[1:6], "sizes"], strict=True))
    found = found_alone(check.find_flaw, week02.find_flaw, lambda f: answers[week02.find_flaw(f)])
    said = ["this fit has no flaw" if k == "none" else f"its flaw is {k!r}" for k in kinds]
    assert [finding.split("; ")[1] for finding in found] == said


@pytest.mark.parametrize("flaw", [*FLAWS, "none"])
@pytest.mark.parametrize("answer", [*FLAWS, "none"])
def test_the_hint_for_each_pair_of_answer_and_flaw(answer, flaw):
    if answer == flaw:
        judge_flaw(answer, None, flaw)
        return
    hint = hint_flaw(answer, flaw, None)
    assert hint.startswith("Look at the runs") == (
        answer == "stopped early" and flaw not in ("none", "stopped early")
    )
    assert (FALSE_ALARMS.get(answer, "no words") in hint) == (
        flaw == "none" or answer not in ("none", "stopped early")
    )
    assert (MISSED.get(flaw, "no words") in hint) == (flaw != "none")
    with pytest.raises(NotRight, match=f"you returned '{answer}'; "):
        judge_flaw(answer, None, flaw)


def test_runs_follow_the_law_and_their_noise():
    fit = given_fit("none", seed=1, noise=0.01)
    left = np.log(fit.loss) - predicted(THETA, fit.params, fit.tokens)
    assert 0.005 < left.std() < 0.02
    assert abs(left.mean()) < 0.006
    for width, runs in zip(WIDTHS, np.split(fit.params, 7), strict=True):
        assert set(runs) == {12 * width**2 * width / 64 + 32_000 * width}
    assert all(len(set(runs)) == 4 for runs in np.split(fit.tokens, 7))
    assert set(fit.tokens) <= set(TOKENS)
    assert fit.objective(fit.theta) == pytest.approx(
        huber(predicted(fit.theta, fit.params, fit.tokens) - np.log(fit.loss), 1e-3).sum()
    )


def test_a_cut_schedule_has_a_larger_loss():
    fit, sound = given_fit("schedule", seed=2), given_fit("none", seed=2)
    np.testing.assert_allclose(fit.tokens[:3] / fit.scheduled[:3], [0.25, 0.5, 0.75])
    np.testing.assert_allclose(
        np.log(fit.loss / sound.loss)[:3], 0.03 * np.array([0.75, 0.5, 0.25])
    )
    assert (fit.loss[3:] == sound.loss[3:]).all()
    assert (fit.scheduled[3:] == sound.scheduled[3:]).all()


def test_an_embedding_that_is_not_counted():
    fit, sound = given_fit("embedding", seed=3), given_fit("none", seed=3)
    width = np.round((fit.params * 64 / 12) ** (1 / 3))
    np.testing.assert_allclose(sound.params - fit.params, 32_000 * width)
    assert (fit.loss == sound.loss).all()
    assert (fit.flops == sound.flops).all()


def test_a_sound_fit_is_at_a_minimum_along_each_number():
    fit = given_fit("none", seed=11, widths=WIDTHS[2:5])
    least = fit.objective(fit.theta)
    for place in range(5):
        for by in (1e-3, -1e-3):
            theta = list(fit.theta)
            theta[place] += by
            assert fit.objective(theta) > least
    assert fit.theta == pytest.approx(THETA, rel=0.25)


def test_grading_draws_each_fit_anew():
    usual = [fit for (fit,) in asked(check.find_flaw, week02.find_flaw)]
    with drawn_from(3):
        anew = [fit for (fit,) in asked(check.find_flaw, week02.find_flaw)]
    for one, other in zip(usual, anew, strict=True):
        assert not np.isin(one.loss, other.loss).any()

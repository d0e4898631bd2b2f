"""Week 2, beyond the loop over all exercises: the references, and how a flawed fit is made."""

import random

import numpy as np
import pytest

from helpers import check
from helpers.check.week02 import laws
from helpers.check.week02.laws import FALSE_ALARMS, FITS, FLAWS, MISSED, given_fit, minimum
from helpers.models.counts import flops_per_token
from notebooks.solutions import week02

EVERY = [(flaw, given_fit(flaw, **changes)) for flaw, changes in FITS]


def test_counted_flops_are_the_package_s():
    for _, (config, tokens) in laws.count_flops.cases:
        assert laws.counted(config, tokens) == laws.measured(config, tokens)
        assert laws.counted(config, tokens) == week02.count_flops(config, tokens)
        exact = flops_per_token(config, tokens=tokens) if tokens > 1 else None
        assert exact is None or exact * tokens == laws.counted(config, tokens)


@pytest.mark.parametrize("seed", range(5))
def test_the_closed_form_is_the_lowest_point(seed):
    law = laws.optimal.draw(random.Random(seed))
    compute, E, A, B, alpha, beta = law
    N, D = laws.lowest(*law)

    def loss(step):
        return E + A / (N * (1 + step)) ** alpha + B / (D / (1 + step)) ** beta

    assert pytest.approx(compute, rel=1e-12) == 6 * N * D
    assert all(loss(step) > loss(0) for step in (-0.3, -0.01, -1e-4, 1e-4, 0.01, 0.3))
    assert pytest.approx(week02.optimal(*law), rel=1e-9) == (N, D)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda N, D: (N, -D), "Both are positive"),
        (lambda N, D: (N, D, 1), "Return two numbers"),
        (lambda N, D: (1.01 * N, D / 1.01), "Nearly"),
        (lambda N, D: (2 * N, D / 2), "a smaller model on more tokens"),
        (lambda N, D: (N / 2, D * 2), "a larger model on fewer tokens"),
        (lambda N, D: (N, 2 * D), "N is right"),
        (lambda N, D: (3 * N, D), "D is right"),
        (lambda N, D: (N * 1.5, D * 1.5), "2.25 times the budget"),
        (lambda N, D: (N * (1 + 5e-5), D * (1 + 5e-5)), "What does the budget leave"),
    ],
)
def test_an_optimum_that_no_row_has_is_told_by_its_budget(answer, hint):
    verdict = check.optimal(lambda *law: answer(*week02.optimal(*law)))
    assert verdict.status == "wrong"
    assert hint in verdict.hint


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
    sizes = {kind: [f.objective(f.theta) for k, f in EVERY if k == kind] for kind, _ in EVERY}
    assert max(sizes["none"]) > min(sizes["stopped early"])
    assert all(len(found) >= 2 for found in sizes.values())


def test_runs_follow_the_law_and_their_noise():
    fit, cut = given_fit("none", seed=2, noise=0.01), given_fit("schedule", seed=2, noise=0.01)
    left = np.log(fit.loss) - laws.predicted(laws.THETA, fit.params, fit.tokens)
    assert 0.005 < left.std() < 0.02
    assert abs(left.mean()) < 0.006
    np.testing.assert_allclose(cut.tokens[:3] / cut.scheduled[:3], [0.25, 0.5, 0.75])
    np.testing.assert_allclose(
        np.log(cut.loss / fit.loss)[:4], 0.03 * np.array([0.75, 0.5, 0.25, 0])
    )


def instead(**answers):
    """The solution, but for one flaw it says something else."""
    return lambda fit: answers.get((said := week02.find_flaw(fit)).replace(" ", "_"), said)


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda fit: "none", MISSED["schedule"]),
        (lambda fit: "stopped early", FALSE_ALARMS["stopped early"]),
        (lambda fit: "outlier", "Return one of 'schedule', 'embedding', 'sizes', 'stopped early', "
         "'none'."),
        (instead(stopped_early="none"), MISSED["stopped early"]),
        (instead(embedding="stopped early"), f"Look at the runs before theta. "
         f"{MISSED['embedding']}"),
        (instead(sizes="embedding"), f"{FALSE_ALARMS['embedding']} {MISSED['sizes']}"),
        *((lambda fit, flaw=flaw: flaw, FALSE_ALARMS[flaw]) for flaw in FLAWS),
    ],
)  # fmt: skip
def test_a_wrong_flaw_gets_its_hint(mistake, hint):
    verdict = check.find_flaw(mistake)
    assert verdict.status == "wrong"
    assert verdict.hint == hint
    assert "fit " in verdict.finding

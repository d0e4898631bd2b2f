"""Steps of ZeRO stage 1: what a rank reports, and what the judge refuses, without ranks."""

from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import NotRight
from helpers.check.traffic import Call
from helpers.check.week06 import stage_1
from helpers.check.week06.stage_1 import AS_TORCH, SIZES, gradients, judge_steps
from helpers.runtime.runs import Runs

NUMBERS = 7  # on three ranks: the last one has one number, and two of padding


def test_the_norms_of_mistakes_by_hand():
    """Mean gradients (3, 4) on rank 0; (12) and padding of 5 on rank 1."""
    every = torch.tensor([[1.0, 9.0, 20.0, 5.0], [5.0, -1.0, 4.0, 5.0]], dtype=torch.float64)
    kept = every.clone()
    assert stage_1.norms(every, 3) == pytest.approx(
        {
            "right": 13,
            "with padding": 194**0.5,
            "divided twice": 6.5,
            "of the sum": 26,
            "the sum of norms": 17,
            "after clipping": 1,
            "squared": 169,
        }
    )
    assert stage_1.norms(every / 20, 3)["after clipping"] == pytest.approx(0.65)
    assert [stage_1.shard_norm(every, 3, rank) for rank in (0, 1)] == pytest.approx([5, 12])
    assert [stage_1.shard_norm(every, 2, rank) for rank in (0, 1)] == pytest.approx([5, 0])
    assert torch.equal(every, kept)


@pytest.mark.parametrize("step", range(3))
def test_the_gradients_of_a_step(step):
    made = gradients(step, 4, 5, 8)
    assert made.shape == (4, 8)
    assert made[:, :5].mean(0).norm().item() == pytest.approx(SIZES[step])
    assert (made[:, 5:] == 3).all()
    rows = torch.cat([gradients(other, 4, 5, 8)[:, :5] for other in range(3)])
    rows /= rows.norm(dim=1, keepdim=True)
    assert len({tuple(row) for row in (rows * 1e6).round().tolist()}) == 12
    assert SIZES[0] < stage_1.MAX_NORM < min(SIZES[1:])


def test_what_counts_as_a_number():
    for value in (1, 0.5, torch.tensor(2.0), torch.tensor([[3]])):
        assert stage_1.is_scalar(value)
    for value in (True, None, "1", [1.0], torch.ones(2), torch.ones(0)):
        assert not stage_1.is_scalar(value)


class Told:
    """Traffic that a test has written down: 11 bytes of all-reduces in the second step alone."""

    step = 0

    def __enter__(self):
        Told.step += 1
        self.calls = [Call("all_gather", None, 700)]
        if Told.step == 2:
            self.calls += [Call("all_reduce", None, 5), Call("all_reduce", None, 6)]
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def alone(monkeypatch):
    """Rank 1 of three, which knows all gradients."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(stage_1, "Traffic", Told)
    monkeypatch.setattr(Told, "step", 0)
    return SimpleNamespace(world_size=3, rank=1)


@pytest.mark.parametrize("more", [(0, 0, 0), (1e-6, 1e-6, 1e-6), (0, 1e-6, 0), (1e-6, 0, 1e-6)])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_what_a_rank_reports(alone, name, more):
    """The clip may add torch's 1e-6 to the norm, in each step anew."""
    given = []

    def solve(worker, params, numbers, make_optimizer, max_norm):
        assert (worker, numbers, max_norm, params.shape) == (alone, 7, 1.0, (9,))
        mine = params[:7].clone()
        optimizer = make_optimizer([mine])
        other = torch.zeros(2, dtype=torch.float64)
        second = make_optimizer([other])
        assert type(second).__name__ == name

        def step(gradient):
            k = len(given)
            given.append(gradient.clone())
            gradient.zero_()  # it is the student's to change
            mean = gradients(k, 3, 7, 9)[:, :7].mean(0)
            norm = mean.norm()
            mine.grad = mean * min(1.0, 1.0 / (norm + more[k]))
            optimizer.step()
            other.grad = torch.ones_like(other)
            second.step()
            params[:7] = mine
            return [norm, norm.item(), None][k]

        return step

    found = stage_1.run_steps(alone, solve, 7, name)
    assert all(torch.equal(one, gradients(k, 3, 7, 9)[1]) for k, one in enumerate(given))
    reports = found["reports"]
    assert [one["kind"] for one in reports] == [
        AS_TORCH if k and one else "right" for k, one in enumerate(more)
    ]
    assert [one["norm"] for one in reports] == [pytest.approx(0.2), pytest.approx(4.0), "NoneType"]
    assert [one["norms"]["right"] for one in reports] == pytest.approx([0.2, 4.0, 2.0])
    assert [one["reduced"] for one in reports] == [0, 11, 0]
    for k, one in enumerate(reports):
        assert one["own"] == pytest.approx(gradients(k, 3, 7, 9).mean(0)[3:6].norm().item())
    moments, counters = {"SGD": (1, 0), "Adam": (2, 2 * 4)}[name]
    assert (found["step"], found["optimizers"]) == ("", 2)
    assert found["state"] == moments * (7 + 2) * 8 + counters


def test_a_wrong_step_is_named_by_the_parameters_before_it(alone):
    """And by this rank's own gradient. In the second step it updates nothing."""

    def solve(worker, params, numbers, make_optimizer, max_norm):
        def step(gradient):
            own = gradient[:7]
            params[:7] -= 0.5 * own * min(1.0, 1 / own.norm()) * (not done)
            done.append(True)
            return 0.0

        done = []
        return step

    kinds = [one["kind"] for one in stage_1.run_steps(alone, solve, 7, "SGD")["reports"]]
    assert kinds[:2] == ["own", "nothing"]


def test_what_is_no_step_is_named(alone):
    assert stage_1.run_steps(alone, lambda *given: 3.5, 7, "SGD") == {"step": "float"}


def report(**changes):
    right = {"right": 2.0, "with padding": 9.0}
    return {"kind": "right", "norm": 2.0, "norms": right, "own": 1.0, "reduced": 64} | changes


def runs(ranks=3, optimizer="SGD", size=3, **changes):
    """What the ranks report if they are right; `changes` are the last rank's."""
    state = {"SGD": 8, "Adam": 16}[optimizer] * size + 64
    right = {"step": "", "reports": [report()] * 3, "state": state, "optimizers": 1}
    return [right] * (ranks - 1) + [right | changes]


def refused(given, optimizer="SGD"):
    with pytest.raises(NotRight) as wrong:
        judge_steps(given, NUMBERS, optimizer)
    return wrong.value


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_what_the_last_rank_may_hold_and_send(optimizer):
    judge_steps(runs(optimizer=optimizer), NUMBERS, optimizer)
    shard = {"SGD": 24, "Adam": 48}[optimizer]
    wrong = refused(runs(optimizer=optimizer, state=shard + 65), optimizer)
    assert wrong.finding == (
        f"right, but rank 2's {optimizer} holds {shard + 65} bytes of state; the state of a shard "
        f"of 3 numbers has {shard} bytes"
    )
    assert "state is not sharded" in wrong.hint
    wrong = refused(runs(reports=[report(), report(reduced=65), report()]))
    assert wrong.finding == "right, but rank 2 used all-reduces of 65 bytes in a step"
    wrong = refused(runs(optimizers=0))
    assert wrong.finding == "right, but rank 2 made no optimizer"
    assert refused(runs(step="NoneType")).finding == "rank 2 returned NoneType"
    judge_steps(runs(1, size=7, reports=[report(reduced=65)] * 3), NUMBERS, "SGD")


def test_the_first_wrong_step_of_any_rank_is_told():
    last = runs(reports=[report(), report(), report(kind="nothing")])
    wrong = refused(last)
    assert wrong.finding == "7 numbers, SGD, step 3, rank 2: the parameters are not one process's"
    assert wrong.hint.startswith("The parameters are what they were.")
    first = runs(reports=[report(), report(kind="own"), report()])
    first[0] = last[2]
    assert refused(first).finding.startswith("7 numbers, SGD, step 2, rank 2: ")
    judge_steps(runs(reports=[report(kind=AS_TORCH)] * 3), NUMBERS, "SGD")


@pytest.mark.parametrize("by", [1, -1])
def test_the_norm_to_nine_digits(by):
    judge_steps(runs(reports=[report(norm=2 * (1 + by * 9e-10))] * 3), NUMBERS, "SGD")
    wrong = refused(runs(reports=[*[report()] * 2, report(norm=2 * (1 + by * 1.2e-9))]))
    assert wrong.finding == (
        "7 numbers, SGD, step 3, rank 2: the parameters are right; step returned 2, the norm is 2"
    )
    assert "root of the sum of all squares" in wrong.hint
    for norm in (float("nan"), by * float("inf")):
        wrong = refused(runs(reports=[report(norm=norm)] * 3))
        assert f"step returned {norm}, the norm is 2" in wrong.finding
    assert refused(runs(reports=[report(norm="str")] * 3)).finding.endswith(
        "step returned str, the norm is 2"
    )
    assert "norm of this rank's shard" in refused(runs(reports=[report(norm=1.0)] * 3)).hint
    assert "padding is counted" in refused(runs(reports=[report(norm=9.0)] * 3)).hint


class Asked(elsewhere.Here):
    """Ranks that are right, but for the last rank of the case with this number."""

    def __init__(self, wrong=None):
        self.wrong, self.asked = wrong, []

    def launch(self, run, workers, fn, kwargs, timeout):
        self.asked.append((workers, *kwargs.values(), timeout))
        wrong = [report(), report(), report(kind="own")]
        size = -(-kwargs["numbers"] // workers)
        bad = {"reports": wrong} if len(self.asked) == self.wrong else {}
        return Runs(runs(workers, kwargs["optimizer"], size, **bad))


def test_the_cases_and_how_long_a_rank_may_be_silent():
    """A busy machine needs more than 10 s to import its first optimizer."""
    with elsewhere.at(Asked()):
        assert check.zero_1(None)
    for number, ranks in enumerate((2, 4, 3, 1), start=1):
        place = Asked(number)
        with elsewhere.at(place):
            verdict = check.zero_1(None)
        assert verdict.finding.startswith(f"with {ranks} rank{'s' * (ranks > 1)}: ")
        assert f"step 3, rank {ranks - 1}: " in verdict.finding
    assert place.asked == [
        (2, 7, "SGD", 40.0),
        (4, 5, "SGD", 40.0),
        (3, 6, "Adam", 40.0),
        (1, 4, "SGD", 40.0),
    ]

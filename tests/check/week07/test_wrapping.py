"""Blocks per unit and their peak: the solution passes on ranks; each mistake gets its own hint.

The judge alone sees the wrong answers, with the peak by the formula: the solution, on ranks, shows
that the formula and the measurement agree.
"""

from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import NotRight
from helpers.check.week07 import wrapping
from helpers.check.week07.wrapping import (
    BLOCKS,
    CASES,
    block_bytes,
    budget_of,
    described,
    divisors,
    expected,
    hint_peak,
    judge_wrapping,
)
from notebooks.solutions import week07

BLOCK = 1000


def judged(solve, ranks, fits):
    """The hint for a function, with the peak by the formula; "" if it is right."""
    budget = budget_of(ranks, fits, BLOCK)
    answer = described(solve(BLOCKS, BLOCK, ranks, budget))
    run = {"answer": answer, "block": BLOCK, "budget": budget}
    if not isinstance(answer, str) and answer[0] in divisors():
        run["peak"] = expected(ranks, answer[0], BLOCK)
    try:
        judge_wrapping([run] * ranks, fits)
    except NotRight as wrong:
        return wrong.hint
    return ""


def with_peak(change):
    """The solution's blocks per unit, with another peak."""

    def solve(blocks, block_bytes, ranks, budget):
        per_unit, peak = week07.choose_wrapping(blocks, block_bytes, ranks, budget)
        return per_unit, change(peak, per_unit * block_bytes, blocks * block_bytes, ranks)

    return solve


def states(total, ranks):
    return 3 * total / ranks


@pytest.mark.parametrize(
    ("solve", "case", "hint"),
    [
        (with_peak(lambda right, *_: right / 4), 0, "how many numbers"),
        (with_peak(lambda right, u, p, n: right - 2 * p / n), 0, "AdamW keeps two"),
        (with_peak(lambda right, u, p, n: 4 * p / n + u), 0, "formula of week 6"),
        (with_peak(lambda right, u, p, n: states(p, n) + u), 0, "that is the forward"),
        (with_peak(lambda right, u, p, n: right + 3 * p - states(p, n)), 0, "states are sharded"),
        (with_peak(lambda right, u, p, n: right + p / n), 0, "Not all gradient shards"),
        (with_peak(lambda right, u, p, n: right - 2 * u), 0, "Parameters and gradients of one"),
        (with_peak(lambda right, u, p, n: right - u), 0, "One buffer is missing"),
        (with_peak(lambda right, u, p, n: states(p, n) + 4 * u), 2, "worst moment is another"),
        (with_peak(lambda right, u, p, n: states(p, n) + 2 * p + p / n), 1, "as one unit"),
        (with_peak(lambda right, *_: 7), 1, "Add up"),
        (lambda *_: (1, expected(2, 1, BLOCK)), 1, "a larger unit fits too"),
        (lambda *_: (6, expected(2, 6, BLOCK)), 1, "above the budget"),
        (lambda *_: (4, 1), 0, "must divide 6"),
        (lambda *_: (0, 1), 0, "must divide 6"),
        (lambda *_: 3, 0, "Return two numbers"),
        (lambda *_: (1, "many"), 0, "Return two numbers"),
    ],
)
def test_each_mistake_gets_its_hint(solve, case, hint):
    assert hint in judged(solve, *CASES[case])


def test_the_largest_peak_of_all_ranks_counts():
    answer = 1, expected(3, 1, BLOCK)
    run = {"answer": answer, "block": BLOCK, "budget": budget_of(3, 1, BLOCK), "peak": answer[1]}
    judge_wrapping([run] * 3, 1)
    with pytest.raises(NotRight, match="a rank held"):
        judge_wrapping([run, run, run | {"peak": 1.2 * answer[1]}], 1)


def test_the_solution_is_right_for_every_case():
    for ranks in (2, 3, 4, 8):
        for fits in divisors():
            assert judged(week07.choose_wrapping, ranks, fits) == ""


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_passes_on_ranks():
    verdict = check.choose_wrapping(week07.choose_wrapping)
    assert verdict, verdict
    assert block_bytes() > 0


@pytest.mark.usefixtures("shared_ranks")
def test_a_wrong_answer_on_ranks():
    """The measured peak is what counts: an answer for another block size fails."""

    def solve(blocks, block_bytes, ranks, budget):
        return 1, 0.9 * expected(ranks, 1, block_bytes)

    verdict = check.choose_wrapping(solve)
    assert verdict.status == "wrong"
    assert "a rank held" in verdict.finding


def test_a_stub():
    def stub(blocks, block_bytes, ranks, budget):
        raise NotImplementedError

    assert check.choose_wrapping(stub).status == "not written yet"


def ask(answer, ranks=3, peaks=None, fits=1, budget=10**6):
    """The judge's words for an answer on ranks with these peaks."""
    run = {"answer": answer, "block": BLOCK, "budget": budget}
    with pytest.raises(NotRight) as wrong:
        judge_wrapping([run | {"peak": peak} for peak in peaks or [10_000] * ranks], fits)
    return wrong.value


def test_five_percent_off_is_wrong():
    run = {"answer": (1, 10_000.0), "block": BLOCK, "budget": 10_500, "peak": 10_000}
    for said in (9_520.0, 10_520.0):
        judge_wrapping([run | {"answer": (1, said)}] * 3, 1)
    for said in (9_490.0, 10_530.0):
        wrong = ask((1, said), budget=10_500)
        assert wrong.finding == (
            "6 blocks of 1,000 bytes, budget 10,500 bytes: 1 blocks in a unit; "
            f"you said {said:,.0f} bytes, and a rank held 10,000"
        )


def test_a_budget_that_is_just_enough_is_enough():
    run = {"answer": (2, 10_000.0), "block": BLOCK, "budget": 10_000, "peak": 10_000}
    judge_wrapping([run] * 2, 2)
    assert "above the budget" in ask((2, 10_000.0), budget=9_999, fits=2).hint
    assert "a larger unit fits too" in ask((2, 10_000.0), fits=3).hint


def test_what_is_no_pair_of_numbers():
    assert described((2, 5)) == (2, 5.0)
    assert described([3, 5.5]) == (3, 5.5)
    for answer in (5, (1,), (1, 2, 3), (1, "2"), (True, 2), None):
        assert described(answer) == repr(answer)
    assert described("x" * 300) == repr("x" * 300)[:200]
    assert ask("None").finding == "returned None"
    assert divisors() == [1, 2, 3, 6]


def test_the_budgets_are_between_two_peaks():
    for ranks, fits in CASES:
        peaks = {k: week07.peak_bytes(6 // k, k * BLOCK, ranks) for k in divisors()}
        budget = budget_of(ranks, fits, BLOCK)
        over = [k for k in divisors() if k > fits]
        assert budget == round((peaks[fits] + peaks[over[0]]) / 2)
        assert all(expected(ranks, k, BLOCK) == pytest.approx(peak) for k, peak in peaks.items())
    assert budget_of(2, 6, BLOCK) == round(1.2 * expected(2, 6, BLOCK))
    assert CASES == [(3, 1), (2, 2), (2, 3)]


def test_a_block_by_hand():
    """Attention 4 D², SwiGLU 3 · 128 D, two norms of D: of width 48, in float32."""
    inner = (block_bytes() / 4 - 4 * 48**2 - 2 * 48) / (3 * 48)
    assert inner == int(inner)
    assert 2 * 48 < inner < 4 * 48


@pytest.mark.parametrize("off", [0.009, -0.009])
def test_the_hint_for_a_peak_within_one_percent(off):
    right = expected(3, 1, BLOCK)
    assert "how many numbers" in hint_peak(right / 4 * (1 + off), 1, 3, BLOCK)
    assert "how many numbers" not in hint_peak(right / 4 * (1 + 1.3 * off), 1, 3, BLOCK)


class Asked(elsewhere.Here):
    """Ranks with the peak by the formula; the last rank of the case with this number has more."""

    def __init__(self, wrong):
        self.wrong, self.asked = wrong, []

    def launch(self, run, workers, fn, kwargs, timeout):
        budget = budget_of(workers, kwargs["fits"], BLOCK)
        right = expected(workers, kwargs["fits"], BLOCK)
        report = {"block": BLOCK, "budget": budget, "answer": (kwargs["fits"], right)}
        more = 1.2 if len(self.asked) == self.wrong else 1
        self.asked.append((workers, kwargs["fits"], timeout))
        return [report | {"peak": right}] * (workers - 1) + [report | {"peak": right * more}]


def test_each_case_is_asked_for_and_ranks_may_be_silent_for_minutes():
    """The student's function sends nothing, so only a busy machine keeps a rank silent."""
    for number, ranks in enumerate((3, 2, 2)):
        place = Asked(number)
        with elsewhere.at(place):
            assert check.choose_wrapping(None).finding.startswith(f"with {ranks} ranks: 6 blocks")
    with elsewhere.at(Asked(3)):
        assert check.choose_wrapping(None)
    assert place.asked == [(3, 1, 300.0), (2, 2, 300.0), (2, 3, 300.0)]


@pytest.mark.parametrize(
    ("answer", "peaks"),
    [
        ((2, 9.5), [2]),
        ((2.0, 9.5), [2]),
        ((2.5, 9.5), []),
        ([3, 7], [3]),
        ((4, 1.0), []),
        ((0, 1.0), []),
        ("two", []),
        ((2,), []),
    ],
)
def test_what_a_rank_is_asked_and_what_it_measures(monkeypatch, answer, peaks):
    """Only a wrapping that can be is measured: the student's, not the one that fits."""
    asked, measured = [], []
    monkeypatch.setattr(wrapping, "block_bytes", lambda: BLOCK)
    monkeypatch.setattr(
        wrapping, "measured", lambda worker, per_unit: measured.append(per_unit) or 77
    )

    def solve(*given):
        asked.append(given)
        return answer

    worker = SimpleNamespace(rank=1, world_size=3)
    found = wrapping.run_wrapping(worker, solve, 1)
    budget = budget_of(3, 1, BLOCK)
    assert asked == [(6, BLOCK, 3, budget)]
    assert measured == peaks
    assert all(type(one) is int for one in measured)
    assert found == {"answer": described(answer), "block": BLOCK, "budget": budget} | (
        {"peak": 77} if peaks else {}
    )


def test_how_a_peak_is_measured(monkeypatch):
    """The least of three steps, after one that makes the optimizer's state."""
    made, steps, peaks = {}, [], [900, 700, 800]

    class Trained:
        model, optimizer = "model", "optimizer"

        def __init__(self, config, seed, mesh, wrap):
            made.update(config=config, mesh=mesh, wrap=wrap)

        def step(self, batch):
            steps.append(batch)

    def memory_of(step, model, optimizer):
        assert (model, optimizer) == ("model", "optimizer")
        assert len(steps) == 4 - len(peaks)
        step()
        return SimpleNamespace(peak=peaks.pop(0))

    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr("helpers.comm.mesh.make_mesh", lambda layout: (layout.axes, layout.shape))
    monkeypatch.setattr("helpers.measure.memory.memory_of", memory_of)
    monkeypatch.setattr("helpers.parallel.libraries.fully_shard.FullyShard", Trained)
    assert wrapping.measured(SimpleNamespace(rank=2, world_size=3), 2) == 700
    assert made["mesh"] == (("dp",), (3,))
    model = made["config"].build(device="meta")
    assert [len(unit) for unit in made["wrap"](model)] == [2, 2, 2]
    assert len(steps) == 4
    assert all(one.tokens.shape == (1, 2) and one.tokens.max() < 8 for one in steps)

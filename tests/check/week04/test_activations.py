"""Bytes that a rank keeps of a block: the solution passes, each mistake gets its own hint."""

import math
from dataclasses import replace

import pytest

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.week04 import activations, measured
from helpers.plans.activation_memory import block_activations, korthikanti
from notebooks.solutions import week04
from tests.check.asked import drawn_anew
from tests.check.told import told


@pytest.fixture
def counted(monkeypatch):
    """Another measurement, which keeps the cases that it was asked for."""
    asked_for = []

    def measure(cases):
        asked_for.append(cases)
        return {one: measured.Measured(0.0, round(activations.bytes_of(one))) for one in cases}

    monkeypatch.setattr(activations, "measure", measure)
    return asked_for


def test_the_solution_passes():
    verdict = check.activation_bytes(week04.activation_bytes)
    assert verdict, verdict


def test_the_stub_is_told_apart_without_a_launch(monkeypatch):
    monkeypatch.setattr(measured, "launch", None)

    def stub(config, sequences, tokens, ranks, way, bytes_per_number):
        raise NotImplementedError

    assert check.activation_bytes(stub).status == "not written yet"


def times(factor):
    def solve(*given):
        return week04.activation_bytes(*given) * factor(given[0], given[3])

    return solve


def terms(change):
    """The formula, with its terms changed by `change(terms, config, ranks, way, e)`."""

    def solve(config, sequences, tokens, ranks, way, e):
        case = measured.Case(
            config=config, sequences=sequences, tokens=tokens, ranks=ranks, way=way,
            bytes_per_number=e,
        )  # fmt: skip
        found = activations.terms_of(case)
        return sum(change(dict(found), config, ranks, way, e).values())

    return solve


def scaled(name, factor):
    def change(found, config, ranks, way, e):
        if name in found:
            found[name] *= factor(config, ranks, e)
        return found

    return terms(change)


def another(**changes):
    """The formula for other arguments."""

    def solve(config, sequences, tokens, ranks, way, e):
        given = {"sharded": way != "tensor", "again": way == "sequence, again", "ranks": ranks}
        given |= {"bytes_per_number": e} | {k: v for k, v in changes.items() if k != "recompute"}
        if "recompute" in changes and config.recompute == changes["recompute"]:
            config = replace(config, recompute="none")
        return sum(block_activations(config, sequences, tokens, **given).values())

    return solve


def by_the_paper(config, sequences, tokens, ranks, way, e):
    """34 s b h + 5 a s² b: 2 bytes a number, dropout also on the scores."""
    given = "tensor" if way == "tensor" else "tensor and sequence"
    return korthikanti(sequences, tokens, config.width, config.heads, ranks, given)


def zero(config, ranks, e):
    return 0


def is_full(given):
    return given[0].recompute == "full"


def full(value):
    """Right, but for full recomputation."""

    def solve(*given):
        return value(*given) if is_full(given) else week04.activation_bytes(*given)

    return solve


def selective_without_inputs(*given):
    """Right, but with selective recomputation queries, keys and values are not kept."""
    config, sequences, tokens, ranks, _, e = given
    kept = 3 * e * sequences * tokens * config.width / ranks
    return week04.activation_bytes(*given) - kept * (config.recompute == "selective")


def block_input(config, sequences, tokens, ranks, way, e):
    return sequences * tokens * config.width * e


ACTIVATIONS = [
    *((scaled(name, zero), hint) for name, hint in activations.LEFT_OUT.items()),
    (scaled("dropout masks", zero), "masks of the dropout are missing"),
    (scaled("scores", lambda c, n, e: n), "The heads are cut"),
    (scaled("inside the MLP", lambda c, n, e: n), "The MLP is cut inside"),
    (scaled("queries, keys, values", lambda c, n, e: n), "with them queries, keys and values"),
    (scaled("scores", lambda c, n, e: 2), "before the softmax"),
    (scaled("scores", lambda c, n, e: 2 + 1 / e), "dropout on the scores"),
    (scaled("scores", lambda c, n, e: c.heads), "How many scores does each head have"),
    (scaled("scores", lambda c, n, e: 1 / c.heads), "Each head has its own scores"),
    (scaled("scores", lambda c, n, e: 1 / 3), "Each sequence has its own scores"),
    (scaled("inside the MLP", lambda c, n, e: 0.5), "F numbers each"),
    (scaled("inside the MLP", lambda c, n, e: 4 * c.width / c.inner), "need not be 4 D"),
    (scaled("dropout masks", lambda c, n, e: e), "one byte for each number"),
    (scaled("dropout masks", lambda c, n, e: 0.5), "How many dropouts"),
    (scaled("inputs of the layers", lambda c, n, e: 3), "share one input. How often"),
    (another(bytes_per_number=1), "You counted numbers"),
    (another(bytes_per_number=2), "It is an argument"),
    (another(bytes_per_number=4), "It is an argument"),
    (another(ranks=1), "Which tensors does a rank have only in part"),
    (another(sharded=True, again=True), "You divide all of it by N"),
    (another(sharded=True), "on every rank: what do norms and dropout keep"),
    (another(sharded=False), "with sequence parallelism?"),
    (another(recompute="selective"), "Which large tensor of the core"),
    (selective_without_inputs, "The core of attention runs again in the backward"),
    (another(recompute="full"), "From which tensor does it start"),
    (full(lambda *given: block_input(*given[:5], 2)), "How many bytes does each number have"),
    (full(lambda *given: block_input(*given) / given[3]), "How much of this input"),
    (full(block_input), "How much of this input"),
    (times(lambda c, n: c.layers), "not all layers"),
    (times(lambda c, n: n), "not those of all ranks"),
    (by_the_paper, "It is an argument"),
    (lambda *given: 12345 * given[-1], "Go through the block"),
    (lambda *given: None, "Return one number"),
]


@pytest.mark.parametrize(("mistake", "hint"), ACTIVATIONS)
def test_activation_bytes(mistake, hint):
    told(check.activation_bytes(mistake), hint)


def all_alike(way):
    """Every gathered input is kept, or none, whatever was asked for."""

    def solve(config, sequences, tokens, ranks, given, e):
        used = way if given != "tensor" else given
        return week04.activation_bytes(config, sequences, tokens, ranks, used, e)

    return solve


@pytest.mark.parametrize(
    ("way", "hint"),
    [("sequence, again", "are kept here"), ("sequence, kept", "are not kept here")],
)
def test_gathered_inputs(way, hint):
    told(check.activation_bytes(all_alike(way)), hint)


@pytest.mark.parametrize("by", [0.02, -0.02])
def test_how_close_an_answer_must_be(by):
    assert check.activation_bytes(times(lambda config, n: 1 + by)).status == "wrong"


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize(
    ("way", "row"),
    [("tensor", "tensor, selective"), ("sequence, again", "tensor and sequence, selective")],
)
def test_the_solution_without_scores_is_the_paper_s_table(way, row, ranks):
    """Korthikanti et al. 2022, table 2: s b h (10 + 24/t) and s b h 34/t, 2 bytes a number."""
    config = replace(activations.CASES[0].config, dropout=0.1, recompute="selective")
    found = week04.activation_bytes(config, 3, 64, ranks, way, 2)
    assert found == pytest.approx(korthikanti(3, 64, config.width, config.heads, ranks, row))


def test_the_cases_differ_in_every_argument():
    """Else an answer that ignores an argument could pass."""
    for name in ("ranks", "way", "bytes_per_number"):
        assert len({getattr(case, name) for case in activations.CASES}) > 1
    assert {case.ranks for case in activations.CASES} == {1, 2, 4}
    assert {case.way for case in activations.CASES} == set(measured.WAYS)
    kinds = {case.config.recompute for case in activations.CASES}
    assert kinds == {"none", "selective", "full"}
    assert any(case.config.inner != 4 * case.config.width for case in activations.CASES)
    assert len({case.config.dropout for case in activations.CASES}) == 2


def test_what_may_be_left_out_is_less_than_the_tolerance_and_no_other_term_is():
    for case in activations.CASES:
        found = activations.terms_of(case)
        whole = sum(found.values())
        assert whole == measured.measure(activations.CASES)[case].kept
        assert math.isclose(week04.activation_bytes(*case.arguments()), whole, rel_tol=0.013)
        for name, size in found.items():
            if size and name != "causal mask":
                assert size / whole > 1.25 * activations.CLOSE, (case.title(), name)


def test_grading_measures_what_it_asks_for(counted):
    with drawn_from(7):
        verdict = check.activation_bytes(week04.activation_bytes)
        assert verdict, verdict
        (cases,) = set(counted)
    assert len({case.sequences for case in cases}) == 1
    assert cases[0].sequences > activations.CASES[0].sequences
    assert len(cases) == len(counted) == len(activations.CASES)
    assert drawn_anew(lambda: measured.asked(activations.CASES))


@pytest.mark.parametrize("number", [0, 3, 6])
def test_the_hints_of_one_case(number):
    """A candidate may lack the causal mask and the norms' statistics; it must differ from right."""
    case = activations.CASES[number]
    terms, right = activations.terms_of(case), activations.bytes_of(case)
    small = terms["causal mask"] + terms["norms"] * 2 / (96 + 2)
    layers = "Count one block, not all layers."

    def hint(answer, fn=lambda *given: given[-1]):
        return activations.hint_bytes(answer, case, fn)

    assert hint(3 * right) == hint(3 * (right - small)) == layers
    assert "Go through the block" in hint(3 * (right - 1.05 * small))
    assert "Go through the block" in hint(3.0001 * right)
    for nearly in (right, 0.999 * right, right - small):  # also with one rank, where N is 1
        assert "Go through the block" in hint(nearly)
    assert "Go through the block" in hint(1.01 * right)
    numbers = activations.bytes_of(case, bytes_per_number=1)
    assert "You counted numbers" in hint(numbers, lambda *given: numbers)
    assert "It is an argument" in hint(2 * numbers, lambda *given: numbers)


def test_the_terms_of_a_case_and_of_a_changed_one():
    case = activations.case("sequence, kept", 4, number=8, dropout=0.1, hidden=120)
    given = {"bytes_per_number": 8, "ranks": 4, "sharded": True, "again": False}
    assert activations.terms_of(case) == block_activations(case.config, 3, 32, **given)
    given |= {"ranks": 2, "sharded": False}
    found = activations.terms_of(case, ranks=2, way="tensor", sequences=5)
    assert found == block_activations(case.config, 5, 32, **given)
    given |= {"ranks": 4, "sharded": True, "again": True}
    changed = activations.bytes_of(case, way="sequence, again")
    assert changed == sum(block_activations(case.config, 3, 32, **given).values())
